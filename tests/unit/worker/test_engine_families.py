"""Every family against its references: alone, in any batch and chunks, after preemption."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kit import artifacts
from services.registry.importing import import_model
from services.worker.engine import (
    BadWeightsError,
    EngineError,
    UnsupportedModelError,
    kv,
    load_engine,
)
from services.worker.engine.families import FAMILIES, read_model
from services.worker.engine.rope import LinearScaling, RopeSpec
from services.worker.engine.spec import Dense, Experts
from tests.unit.worker.engine_driver import (
    DATA,
    TINY_CONFIG,
    Driver,
    all_logprobs,
    alone,
    altered,
    cases_of,
    check_against,
    seal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.engine.runner import Runner

NAMES = ("gemma3", "llama3-rope", "mistral-window", "qwen2", "qwen3", "qwen3-moe")
# A reference each: the second ran after its whole module had been cast to bfloat16 and back.
REFERENCES = {"float32": "expected", "bfloat16": "expected_rounded_rope"}
VARIANTS = json.loads((DATA / "variants.json").read_text())["variants"]


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    return json.loads((DATA / name / "config.json").read_text()) | changes  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=REFERENCES)
def rope_frequencies(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def artifact(name: str, rope_frequencies: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models_dir = tmp_path_factory.mktemp("models")
    source, asked = str(DATA / name), None if rope_frequencies == "float32" else rope_frequencies
    manifest = import_model(source, name, models_dir, lambda _: None, rope_frequencies=asked)
    return artifacts.locate(models_dir, manifest.model_version)


@pytest.fixture(scope="module")
def engine(artifact: Path) -> Runner:
    return load_engine(artifact, TINY_CONFIG)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def cases(name: str, rope_frequencies: str) -> list[dict[str, Any]]:
    return cases_of(name, REFERENCES[rope_frequencies])


def test_every_supported_architecture_has_a_reference() -> None:
    assert {config_of(name)["architectures"][0] for name in NAMES} == set(FAMILIES)


def test_tokens_and_logprobs_equal_the_reference(engine: Runner, cases: list[dict[str, Any]]) -> None:
    check_against(engine, cases)


@pytest.mark.parametrize("chunk", [1 << 30, 16, 7])
def test_a_batch_of_mixed_lengths_in_any_chunks_gives_each_row_its_own_tokens(
    engine: Runner, cases: list[dict[str, Any]], chunk: int
) -> None:
    driver = Driver(engine, seed=chunk)
    for index in range(32):
        driver.add(cases[index % 4]["prompt_token_ids"], 24)
    assert driver.run(chunk) == [cases[index % 4]["greedy_token_ids"] for index in range(32)]


def test_preemption_recompute_and_shared_prefixes_keep_the_tokens(
    engine: Runner, cases: list[dict[str, Any]]
) -> None:
    """The resumed row starts from the other one's pages, most of them beyond any window."""
    prompt, tokens = cases[3]["prompt_token_ids"], cases[3]["greedy_token_ids"]
    driver = Driver(engine)
    row, other = driver.add(prompt, 24), driver.add(prompt, 24)
    driver.add(cases[1]["prompt_token_ids"], 24)
    while len(row.output) < 9:
        driver.step(32)
    driver.drop(row)
    full = len(prompt) // engine.page_size
    hit = driver.add(row.tokens, 24, prompt_len=len(prompt), prefix=other.pages[:full])
    again = driver.add(row.tokens, 24, prompt_len=len(prompt))
    driver.run(32)
    assert hit.output == again.output == other.output == tokens


def test_nan_in_free_pages_changes_nothing(engine: Runner, cases: list[dict[str, Any]]) -> None:
    """Stale pages that hold NaN poison a row that is masked by a product with zero."""
    driver = Driver(engine, poison=True)
    for case in cases:
        driver.add(case["prompt_token_ids"], 24)
    assert driver.run(8) == [case["greedy_token_ids"] for case in cases]
    assert not any(row.error for row in driver.rows)


def test_bfloat16_gives_finite_and_close_logprobs(artifact: Path, cases: list[dict[str, Any]]) -> None:
    engine: Any = load_engine(artifact, replace(TINY_CONFIG, dtype="bfloat16"))
    for case in cases:
        logprobs = all_logprobs(engine, case["prompt_token_ids"])
        assert logprobs.isfinite().all()
        off = (logprobs[-1, :16] - torch.tensor(case["last_logprobs_first16"])).abs()
        assert off.mean() < 0.1
    driver = Driver(engine)
    for case in cases:
        driver.add(case["prompt_token_ids"], 24)
    assert [len(output) for output in driver.run(16)] == [24] * 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_that_the_tiny_models_lack_equal_the_reference_too(tmp_path: Path, variant: str) -> None:
    found = VARIANTS[variant]
    directory = altered(found["base"], tmp_path, found["config"], found["borrowed"])
    check_against(load_engine(directory, TINY_CONFIG), found["cases"])  # type: ignore[arg-type]


def test_attention_scores_are_capped_where_the_configuration_says_so(tmp_path: Path) -> None:
    """A cap far above every score changes nothing, one below most of them does, in any chunks alike."""
    prompt = cases_of("gemma3")[2]["prompt_token_ids"]
    expected = torch.tensor(cases_of("gemma3")[2]["last_logprobs_first16"])

    def capped(cap: float) -> Runner:
        changed = {"attn_logit_softcapping": cap}
        return load_engine(altered("gemma3", tmp_path / str(cap), changed), TINY_CONFIG)  # type: ignore[return-value]

    assert torch.allclose(all_logprobs(capped(1e4), prompt)[-1, :16], expected, atol=1e-3)
    engine = capped(0.5)
    assert (all_logprobs(engine, prompt)[-1, :16] - expected).abs().max() > 0.1
    driver = Driver(engine)
    driver.add(prompt, 12)
    assert driver.run(7) == [alone(engine, prompt)]


def test_pages_outside_every_window_are_not_read(tmp_path: Path) -> None:
    """A window bounds the time of a step; NaN in a page that is read would reach the logits."""
    engine: Any = load_engine(seal(DATA / "mistral-window", tmp_path / "model"), TINY_CONFIG)
    case = cases_of("mistral-window")[3]
    driver = Driver(engine)
    row = driver.add(case["prompt_token_ids"], 24)
    driver.step()
    while not row.done:
        outside = (len(row.tokens) - 24) // engine.page_size
        engine.pool.data[:, row.pages[:outside]] = torch.nan
        driver.step()
    assert outside >= 8
    assert row.output == case["greedy_token_ids"]


@pytest.mark.parametrize("drop", ["rope_theta", "rope_parameters"])
def test_both_spellings_of_gemmas_two_rotations_are_read_alike(drop: str) -> None:
    both = config_of(
        "gemma3",
        rope_theta=5e5,
        rope_local_base_freq=2e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    )
    del both[drop]
    windowed, whole, *_ = read_model(both).layers
    assert (windowed.rope, windowed.window) == (RopeSpec(2e4), 24)
    assert (whole.rope, whole.window) == (RopeSpec(5e5, LinearScaling(8.0)), None)


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_gemmas_global_layers_are_named_or_every_so_many(key: str) -> None:
    config = config_of("gemma3", num_hidden_layers=7, **{key: 3})
    config["layer_types"] = None
    windows = [layer.window for layer in read_model(config).layers]
    assert windows == [24, 24, None, 24, 24, None, 24]


def test_qwens_experts_are_where_the_configuration_puts_them() -> None:
    config = config_of("qwen3-moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    config["num_experts"] = config.pop("num_local_experts")
    parts = [layer.feed_forward for layer in read_model(config).layers]
    routed = Experts(inner=48, count=8, chosen=2, normalised=True)
    assert parts == [Dense(96), routed, Dense(96), Dense(96), Dense(96), routed]


@pytest.mark.parametrize(
    ("base", "changes", "error", "named"),
    [
        ("qwen2", {"use_sliding_window": True}, UnsupportedModelError, "use_sliding_window"),
        ("qwen3-moe", {"num_experts_per_tok": 9}, EngineError, "9 of 8 experts"),
        ("qwen3-moe", {"moe_intermediate_size": None}, EngineError, "cannot be read as Qwen3Moe"),
        ("gemma3", {"layer_types": ["full_attention"]}, EngineError, "layer_types must name 4"),
        (
            "gemma3",
            {"rope_frequencies": "float16"},
            UnsupportedModelError,
            "rope_frequencies 'float16'.*bfloat",
        ),
        ("llama3-rope", {"rope_frequencies": 32}, UnsupportedModelError, "rope_frequencies 32 .*bfloat16"),
        ("gemma3", {"hidden_activation": "gelu"}, UnsupportedModelError, "hidden_activation 'gelu'"),
        ("gemma3", {"architectures": ["X"]}, UnsupportedModelError, "X is not supported; .*Mistral.*Gemma3"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    base: str, changes: dict[str, Any], error: type[EngineError], named: str
) -> None:
    with pytest.raises(error, match=named):
        read_model(config_of(base, **changes))


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        ("qwen2", {"architectures": ["Qwen3ForCausalLM"]}, r"self_attn\.q_norm\.weight is missing"),
        ("llama3-rope", {"architectures": ["Qwen2ForCausalLM"]}, r"self_attn\.q_proj\.bias is missing"),
        ("qwen3-moe", {"num_local_experts": 9}, r"mlp\.gate\.weight has shape \[8, 64\], expected \[9, 64\]"),
        ("qwen3-moe", {"moe_intermediate_size": 40}, r"experts\.0\.gate_proj\.weight has shape"),
        ("qwen3", {"head_dim": 32}, r"self_attn\.q_proj\.weight has shape \[64, 64\], expected \[128, 64\]"),
    ],
)
def test_tensors_of_another_model_are_named(
    tmp_path: Path, base: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadWeightsError, match=named):
        load_engine(altered(base, tmp_path, changes), TINY_CONFIG)


def test_kv_bytes_follow_from_layers_and_kv_heads_and_their_size(engine: Runner, name: str) -> None:
    """Windowed layers keep their pages, so every layer counts."""
    assert engine.kv_bytes_per_token == 4 * 2 * 2 * 16 * 4
    spec = read_model(config_of(name, head_dim=128, num_key_value_heads=1))
    assert kv.bytes_per_token(spec, torch.bfloat16) == 4 * 2 * 1 * 128 * 2
