"""The native kernels against torch, and what happens where there are none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kit import artifacts
from services.worker.engine import EngineConfig, EngineError, load_engine
from services.worker.engine.batch import Batch
from services.worker.engine.native import build, library
from services.worker.engine.native.decoder import NativeDecoder
from tests.unit.worker.engine_driver import (
    DATA,
    TINY,
    TINY_CONFIG,
    Driver,
    all_logprobs,
    cases_of,
    check_against,
    draws_of,
    needs_native,
    prompt_of,
    reseal,
    seal,
)

DENSE = ("gemma3", "llama3-rope", "mistral-window", "qwen2", "qwen3")
NATIVE = replace(TINY_CONFIG, kernels="native", threads=2)
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
GEMMA = LLAMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 40,
    "sliding_window": 37,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
}
# Widths that fill no block, group or tile; KV heads of one query, of five, and of more than a tile holds.
SHAPES: dict[str, dict[str, Any]] = {
    "odd widths": LLAMA
    | {"hidden_size": 80, "intermediate_size": 72, "head_dim": 48, "heads": (5, 1), "vocab_size": 389},
    "biases": LLAMA
    | {"hidden_size": 96, "intermediate_size": 200, "head_dim": 64, "heads": (3, 3), "vocab_size": 384}
    | {"attention_bias": True, "mlp_bias": True},
    "many queries a KV head": LLAMA
    | {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "heads": (80, 2), "vocab_size": 400},
    "wide heads, windows and caps": GEMMA
    | {"hidden_size": 64, "intermediate_size": 100, "head_dim": 256, "heads": (4, 1), "vocab_size": 500},
}


@pytest.fixture(autouse=True)
def _native() -> None:
    needs_native()


def random_model(directory: Path, shape: dict[str, Any]) -> Path:
    """Write an artifact of that shape with random weights."""
    directory.mkdir()
    heads, kv_heads = shape["heads"]
    config = shape | {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    random = torch.Generator().manual_seed(5)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random) * (0.1 if len(size) == 1 else size[-1] ** -0.5)

    tensors = {
        "model.embed_tokens.weight": draw(config["vocab_size"], hidden),
        "model.norm.weight": 1 + draw(hidden),
    }
    tensors["lm_head.weight"] = draw(config["vocab_size"], hidden) * 4
    norms = ["input_layernorm", "post_attention_layernorm"]
    if "sliding_window" in config:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    sizes = {"q": (heads * dim, hidden), "k": (kv_heads * dim, hidden), "v": (kv_heads * dim, hidden)}
    sizes |= {
        "o": (hidden, heads * dim),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors |= {f"{prefix}.{name}.weight": 1 + draw(hidden) for name in norms}
        tensors |= {f"{prefix}.self_attn.{name}_norm.weight": 1 + draw(dim) for name in "qk"}
        for name, size in sizes.items():
            module = f"{prefix}.{'self_attn' if name in 'qkvo' else 'mlp'}.{name}_proj"
            tensors |= {f"{module}.weight": draw(*size), f"{module}.bias": draw(size[0])}
    save_file(tensors, directory / artifacts.WEIGHTS)
    (directory / artifacts.CONFIG).write_text(json.dumps(config))
    (directory / artifacts.TOKENIZER).write_text("{}")
    return reseal(directory)


def four_bits(weight: torch.Tensor, *, last: int = 15, symmetric: bool = False) -> torch.Tensor:
    """Blocks of 32 as `low + step * (0 .. last)`, or with zero in the middle, rounded to bfloat16."""
    blocks = weight.float().view(len(weight), -1, 32)
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    if symmetric:
        high = blocks.abs().amax(-1, keepdim=True)
        low = -high * (last + 1) / last
    step = ((high - low) / last).half().float()
    return (low + step * ((blocks - low) / step).round()).view_as(weight).bfloat16()


def in_four_bits(directory: Path) -> Path:
    """Round an artifact's projections to what four bits hold."""
    tensors = load_file(directory / artifacts.WEIGHTS)
    for name, weight in tensors.items():
        if "_proj.weight" in name and weight.shape[1] % 32 == 0:
            tensors[name] = four_bits(weight)
    save_file(tensors, directory / artifacts.WEIGHTS)
    return reseal(directory)


def ragged(engine: Any, counts: list[int], starts: list[int], seed: int = 0) -> Batch:
    """A batch of random tokens on pages in random order; earlier tokens' KV is what the pool holds."""
    random = np.random.default_rng(seed)
    size = engine.page_size
    contexts = np.array(counts) + np.array(starts)
    width = -(-int(contexts.max()) // size)
    tables = random.permutation(engine.page_count)[: len(counts) * width].reshape(len(counts), width)
    positions = np.concatenate(
        [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    )
    rows = np.repeat(np.arange(len(counts)), counts)
    return Batch(
        token_ids=random.integers(0, engine.vocab_size, len(rows)),
        positions=positions,
        cells=tables[rows, positions // size] * size + positions % size,
        counts=np.array(counts),
        contexts=contexts,
        page_tables=tables,
        sampled=np.arange(len(rows)),
    )


@pytest.mark.parametrize("page_size", [16, 48])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_of_any_shape_computes_what_torch_does(
    tmp_path: Path, dtype: Any, shape: str, page_size: int
) -> None:
    artifact = random_model(tmp_path / "model", SHAPES[shape])
    logits = {}
    for kernels in ("native", "torch"):
        config = replace(
            TINY_CONFIG, kernels=kernels, dtype=dtype, page_size=page_size, page_count=128, threads=2
        )
        engine: Any = load_engine(artifact, config)
        # Here nothing blanks the pages that a step enters, as torch would need it.
        engine.pool.data.fill_(torch.nan if kernels == "native" else 0)
        prompts = ragged(engine, [1, 1, 300, 37, 16], [0, 0, 0, 0, 0])
        first = engine.forward(prompts).clone()
        follow = replace(
            prompts,
            token_ids=prompts.token_ids[:5],
            positions=prompts.contexts,
            counts=np.ones(5, np.int64),
            contexts=prompts.contexts + 1,
            cells=prompts.page_tables[np.arange(5), prompts.contexts // page_size] * page_size
            + prompts.contexts % page_size,
            sampled=np.arange(5),
        )
        logits[kernels] = torch.cat((first, engine.forward(follow)))
    assert logits["torch"].std() > 0.1
    if dtype == "float32":
        assert torch.allclose(logits["native"], logits["torch"], atol=2e-4, rtol=1e-4)
    else:
        off = (logits["native"] - logits["torch"]).float().std(-1) / logits["torch"].float().std(-1)
        assert off.max() < 0.06  # torch rounds between operations too: 0.02 to 0.04


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", DENSE)
def test_logits_are_the_same_to_the_bit_in_any_batch_and_chunks(
    tmp_path: Path, name: str, dtype: Any
) -> None:
    artifact = seal(DATA / name, tmp_path / "model")
    if dtype == "int4":
        in_four_bits(artifact)
        dtype = "int8"
    engine: Any = load_engine(artifact, replace(NATIVE, dtype=dtype))
    ids = prompt_of(290)
    seen: list[torch.Tensor] = []
    inner = engine.forward

    def spied(batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = inner(batch)
        mine = [at for at, end in enumerate(np.cumsum(batch.counts)) if batch.contexts[at] == len(ids)]
        seen.extend(
            logits[row].clone() for row in np.searchsorted(batch.sampled, np.cumsum(batch.counts)[mine] - 1)
        )
        return logits

    engine.forward = spied
    for chunk, others in ((1 << 30, 0), (64, 0), (7, 3), (33, 20)):
        driver = Driver(engine, seed=chunk)
        row = driver.add(ids, 1)
        for other in range(others):
            driver.add(prompt_of(10 + 13 * other), 60)
        while not row.done:
            driver.step(chunk)
    assert len(seen) >= 4
    assert all(torch.equal(each, seen[0]) for each in seen)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("counts", [[1] * 40, [1, 1, 300], [1] * 70 + [300, 3, 1], [200, 30, 40]], ids=sum)
def test_threads_that_share_a_step_change_no_bit_of_it(tmp_path: Path, counts: list[int], dtype: Any) -> None:
    artifact = random_model(tmp_path / "model", SHAPES["odd widths"])
    logits = []
    for threads in (1, 2, 3):
        engine: Any = load_engine(artifact, replace(NATIVE, dtype=dtype, threads=threads, page_count=2048))
        prompts = ragged(engine, counts, [7 * row % 50 for row in range(len(counts))])
        for _ in range(3):
            engine.pool.data.fill_(0)
            logits.append(engine.forward(prompts).clone())
    assert logits[0].std() > 0.1
    assert all(torch.equal(each, logits[0]) for each in logits)


@pytest.mark.parametrize("few", [True, False], ids=["5 tokens", "389 tokens"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_likeliest_token_is_known_without_the_logits(tmp_path: Path, dtype: Any, few: bool) -> None:
    artifact = random_model(tmp_path / "model", SHAPES["odd widths"] | {"vocab_size": 5 if few else 389})
    tensors = load_file(artifact / artifacts.WEIGHTS)
    head = tensors["lm_head.weight"]
    if few:  # all of a row's logits may be negative: channels that only pad are likelier
        head[:] = head[0] * torch.tensor([1, 1, 2, 3, 3])[:, None]
    else:
        head[200:] = head[:189]
    save_file(tensors, artifact / artifacts.WEIGHTS)
    for threads in (1, 2, 3):
        engine: Any = load_engine(reseal(artifact), replace(NATIVE, dtype=dtype, threads=threads))
        engine.pool.data.zero_()
        batch = ragged(engine, [1] * 40 + [30], [0] * 41)
        logits, rows = engine.forward(batch).clone(), len(batch.sampled)
        assert (logits.amax(-1) < 0).any() or not few
        random = np.arange(rows) % 3 == 1
        draws = draws_of(np.arange(rows).astype(np.uint64), temperature=np.where(random, 1.0, 0.0))
        everything = engine.forward.draw(logits, draws)
        engine.forward(batch).fill_(torch.nan)
        some = engine.forward(replace(batch, wanted=random))
        assert some.isnan().any(-1).tolist() == (~random).tolist()
        engine.forward.draw(some, draws)
        drawn = engine.forward.draw(some, draws)
        assert drawn.token_id.tolist() == everything.token_id.tolist()
        assert drawn.token_id[~random].tolist() == logits.argmax(-1)[~random].tolist()
        assert drawn.finite.all()


# Greedy or not, at the border between them, with and without log-probabilities.
ASKED: list[dict[str, float | None]] = [
    {"temperature": 0.0, "top_logprobs": None},
    {"temperature": 0.8, "top_logprobs": None, "top_p": 0.9},
    {"temperature": 0.0, "top_logprobs": 0},
    {"temperature": 9.99e-6, "top_logprobs": None},
    {"temperature": 1e-5, "top_logprobs": None},
    {"temperature": 1.001e-5, "top_logprobs": None, "top_k": 5},
    {"temperature": 0.0, "top_logprobs": 2},
    {"temperature": 0.3, "top_logprobs": 3, "min_p": 0.1},
    {"temperature": 0.4, "top_logprobs": None},
]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_drawn_is_the_same_where_unwanted_logits_hold_nothing(tmp_path: Path, threads: int) -> None:
    artifact = seal(DATA / "llama3-rope", tmp_path / "model")
    prompts = [prompt_of(1 + 7 * index % 60) for index in range(27)]

    def outputs(*, everything: bool) -> list[Any]:
        engine: Any = load_engine(artifact, replace(NATIVE, threads=threads, page_count=2048))
        inner = engine.forward
        inner._space = torch.empty(len(prompts), engine.vocab_size)
        unwanted = 0

        def spoiled(batch: Batch) -> torch.Tensor:
            nonlocal unwanted
            inner._space.fill_(-7)
            logits: torch.Tensor = inner(replace(batch, wanted=None) if everything else batch)
            unwanted += int((logits == -7).all(-1).sum())
            return logits

        engine.forward = spoiled
        driver = Driver(engine, seed=3)
        random = np.random.default_rng(3)
        rows = [
            driver.add(prompt, 5 + index % 7, seed=index, **ASKED[index % len(ASKED)])
            for index, prompt in enumerate(prompts)
        ]
        while not all(row.done for row in rows):
            driver.step(int(random.integers(1, 30)))
        assert (unwanted == 0) == everything
        return [(row.output, row.logprobs, row.error) for row in rows]

    assert outputs(everything=False) == outputs(everything=True)


def flags_of_mapping(address: int) -> list[str]:
    """What /proc says of the memory mapping that holds an address."""
    for mapping in re.split(r"(?<=\n)(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        first, end = (int(bound, 16) for bound in mapping.split(" ")[0].split("-"))
        if first <= address < end:
            return mapping.rpartition("VmFlags:")[2].split()
    raise AssertionError(f"{address:#x} is not mapped")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_keys_and_values_that_were_never_written_change_nothing(tiny_artifact: Path, dtype: Any) -> None:
    engine: Any = load_engine(tiny_artifact, replace(NATIVE, dtype=dtype))
    batch, logits = ragged(engine, [1, 7, 33, 1], [0, 0, 0, 0]), []
    for byte in (0, 0xFF):
        engine.pool.data.view(torch.uint8).fill_(byte)
        logits.append(engine.forward(batch).clone())
    assert torch.equal(*logits)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here")
def test_the_pool_lies_where_the_system_makes_huge_pages(tiny_artifact: Path) -> None:
    engine: Any = load_engine(tiny_artifact, NATIVE)
    flags = flags_of_mapping(engine.pool.data.data_ptr())
    assert "hg" in flags  # asked for
    assert "sh" not in flags  # of shared memory most systems make small pages only


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("half", ["keys", "values"])
def test_a_key_or_value_that_is_no_number_reaches_the_logits_of_its_row_alone(
    tiny_artifact: Path, half: str, dtype: Any
) -> None:
    engine: Any = load_engine(tiny_artifact, replace(NATIVE, dtype=dtype))
    engine.pool.data.zero_()
    batch = ragged(engine, [1, 1, 3], [20, 20, 20])
    pages = engine.pool.data.view(torch.uint8)[:, batch.page_tables[1, 0]]
    pages[:, slice(2) if half == "keys" else slice(2, None)] = 0xFF
    finite = [True, False, True, True, True]
    assert engine.forward(batch).isfinite().all(-1).tolist() == finite
    unwritten = engine.forward(replace(batch, wanted=np.zeros(5, np.bool_)))
    greedy = draws_of(np.zeros(5, np.uint64), temperature=0.0)
    assert engine.forward.draw(unwritten, greedy).finite.tolist() == finite


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_products_measured_alone_change_no_later_step(tmp_path: Path, dtype: Any) -> None:
    engine: Any = load_engine(seal(TINY, tmp_path / "model"), replace(NATIVE, dtype=dtype))
    batch = ragged(engine, [1, 20, 1], [0, 0, 0])
    before = engine.forward(batch).clone()
    for rows in (1, 40, 200):
        engine.forward.products(rows)
    assert torch.equal(engine.forward(batch), before)


@pytest.mark.parametrize("name", DENSE)
def test_int8_is_close_to_float32(tmp_path: Path, name: str) -> None:
    artifact = seal(DATA / name, tmp_path / "model")
    exact, rounded = (load_engine(artifact, replace(NATIVE, dtype=dtype)) for dtype in ("float32", "int8"))  # type: ignore[arg-type]
    heads = exact.pool.data.shape[0] * exact.pool.data.shape[2]  # each with a scale of 4 bytes
    assert rounded.kv_bytes_per_token == exact.kv_bytes_per_token / 4 + 4 * heads
    ids = cases_of(name)[3]["prompt_token_ids"]
    off = (all_logprobs(rounded, ids) - all_logprobs(exact, ids)).abs()  # type: ignore[arg-type]
    assert 0 < off.mean() < 0.06


@pytest.mark.parametrize("name", DENSE)
def test_int8_keeps_in_four_bits_what_their_source_had_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    artifact = in_four_bits(seal(DATA / name, tmp_path / "model"))
    ids = cases_of(name)[3]["prompt_token_ids"]
    exact = all_logprobs(load_engine(artifact, replace(NATIVE, dtype="float32")), ids)  # type: ignore[arg-type]
    packed = all_logprobs(load_engine(artifact, replace(NATIVE, dtype="int8")), ids)  # type: ignore[arg-type]
    monkeypatch.setattr(NativeDecoder, "in_levels", lambda self, weight: False)
    bytewise = all_logprobs(load_engine(artifact, replace(NATIVE, dtype="int8")), ids)  # type: ignore[arg-type]
    assert not torch.equal(packed, bytewise)
    assert 0 < (packed - exact).abs().mean() < 0.06


@pytest.mark.parametrize(
    "options", [{}, {"last": 11}, {"symmetric": True}, {"last": 14, "symmetric": True}], ids=str
)
def test_four_bits_are_found_in_weights_that_were_rounded(tmp_path: Path, options: dict[str, Any]) -> None:
    engine: Any = load_engine(seal(TINY, tmp_path / "model"), NATIVE)
    weight = torch.randn(130, 96, generator=torch.Generator().manual_seed(1)) * 0.02
    rounded = four_bits(weight, **options)
    rounded[4], rounded[5, :32] = 0, 0.5
    assert engine.forward.in_levels(rounded)
    assert engine.forward.in_levels(rounded.float())
    assert not engine.forward.in_levels(weight)
    rounded[129, 95] += rounded[129, 64:].abs().max() / 25
    assert not engine.forward.in_levels(rounded)


def kinds() -> list[Any]:
    """What this processor can run; those between the best and the plainest take a while to build."""
    best, *others = build.fitting()
    between = [pytest.param(kind, marks=pytest.mark.slow) for kind in others[:-1]]
    return [best, *between, *others[-1:]]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_every_kind_of_processor_computes_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: build.Target
) -> None:
    monkeypatch.setattr(build, "target", lambda: kind)
    library.load.cache_clear()
    try:
        engine: Any = load_engine(seal(DATA / "gemma3", tmp_path / "model"), NATIVE)
        assert f"loom-{kind.name}-" in engine.runtime_revision
        check_against(engine, cases_of("gemma3"))
        ids = cases_of("gemma3")[3]["prompt_token_ids"]
        exact = all_logprobs(engine, ids)
        for dtype, most in (("bfloat16", 0.02), ("int8", 0.06)):
            rounded: Any = load_engine(tmp_path / "model", replace(NATIVE, dtype=dtype))
            assert (all_logprobs(rounded, ids) - exact).abs().mean() < most
    finally:
        library.load.cache_clear()


@pytest.mark.parametrize("name", DENSE)
def test_torch_computes_the_reference_where_it_is_asked_for(tmp_path: Path, name: str) -> None:
    engine: Any = load_engine(seal(DATA / name, tmp_path / "model"), replace(TINY_CONFIG, kernels="torch"))
    assert engine.runtime_revision.startswith("torch-")
    check_against(engine, cases_of(name))


def test_without_a_compiler_torch_computes_unless_the_native_kernels_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_directories", lambda: (tmp_path / "none",))
    monkeypatch.setenv("PATH", str(tmp_path))
    library.load.cache_clear()
    try:
        artifact = seal(TINY, tmp_path / "model")
        assert load_engine(artifact, TINY_CONFIG).runtime_revision.startswith("torch-")
        for wanted in (NATIVE, replace(TINY_CONFIG, dtype="int8")):
            with pytest.raises(EngineError, match=r"no C\+\+ compiler is installed"):
                load_engine(artifact, wanted)
    finally:
        library.load.cache_clear()


def test_where_the_compiler_knows_less_than_the_processor_the_next_kind_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_directories", lambda: (tmp_path,))
    unknown = build.Target("unknown", frozenset(), ("-mno-such-instructions",))
    plain = build.Target("plain", frozenset(), ("-O0",))
    monkeypatch.setattr(build, "targets", lambda: (unknown, plain))
    assert build.library().name.startswith("loom-plain-")
    monkeypatch.setattr(build, "targets", lambda: (unknown,))
    with pytest.raises(build.NativeError, match="no-such-instructions"):
        build.library()


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_directories", lambda: (tmp_path / "libraries",))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "engine.cpp").write_text("int main( { }\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(build.NativeError, match=r"failed: .*engine\.cpp:1.* error: "):
        build.library(replace(build.target(), name="other"))
    assert not list((tmp_path / "libraries").iterdir())


@pytest.mark.parametrize(
    ("model", "changes", "named"), [("qwen3-moe", {}, "experts"), ("qwen2", {"page_size": 8}, "page")]
)
def test_what_the_kernels_do_not_cover_is_computed_by_torch(
    tmp_path: Path, model: str, changes: dict[str, Any], named: str
) -> None:
    artifact = seal(DATA / model, tmp_path / "model")
    assert load_engine(artifact, replace(TINY_CONFIG, **changes)).runtime_revision.startswith("torch-")
    with pytest.raises(EngineError, match=named):
        load_engine(artifact, replace(NATIVE, **changes))


@pytest.mark.parametrize("fields", [{"kernels": "torch"}, {"device": "cuda"}])
def test_int8_is_of_the_native_kernels_alone(fields: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="int8"):
        EngineConfig(dtype="int8", **fields)
