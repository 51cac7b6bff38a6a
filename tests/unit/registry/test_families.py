"""Every family, from a Hugging Face directory and from GGUF: one artifact, or refused by what is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from kit import artifacts
from services.registry.importers.source import SourceError
from services.registry.importing import import_model
from tests.unit.registry.foreign import (
    EXPERTS,
    FAMILIES,
    GgufSpec,
    gguf_name,
    gguf_weights,
    read_weights,
    weights,
    write_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

SLIDING, FULL = "sliding_attention", "full_attention"
# What only one of the two forms says, or says in its own way.
ONE_SIDED = {
    "torch_dtype",
    "rope_theta",
    "rope_scaling",
    "sliding_window_pattern",
    "hidden_act",
    "eos_token_id",
}


def imported(source: Path) -> tuple[artifacts.Manifest, dict[str, Any], Path]:
    models_dir = source.parent / "models"
    manifest = import_model(str(source), "tiny", models_dir, lambda _: None)
    artifact = artifacts.locate(models_dir, manifest.model_version)
    return manifest, json.loads((artifact / artifacts.CONFIG).read_text()), artifact / artifacts.WEIGHTS


def assert_refused(source: Path, match: str) -> None:
    models_dir = source.parent / "models"
    with pytest.raises(SourceError, match=match):
        import_model(str(source), "tiny", models_dir, lambda _: None)
    assert not any(models_dir.glob("**/*")), "something was left half-imported"


@pytest.mark.parametrize("family", FAMILIES)
def test_both_forms_give_the_same_weights_and_configuration(tmp_path: Path, family: str) -> None:
    from_directory = imported(write_directory(tmp_path / "hf", family=family))
    from_gguf = imported(GgufSpec(family).write(tmp_path / "tiny.gguf"))
    for manifest, _, path in (from_directory, from_gguf):
        assert (manifest.family, manifest.context_length) == (family, 512)
        found = read_weights(path)
        assert found.keys() == weights(family).keys()
        for name, values in weights(family).items():
            np.testing.assert_array_equal(found[name][1], values, err_msg=name)
    shared = from_directory[1].keys() - ONE_SIDED
    assert {key: from_gguf[1][key] for key in shared} == {key: from_directory[1][key] for key in shared}


def layers(*kinds: str) -> dict[str, Any]:
    return {"layer_types": list(kinds)}


@pytest.mark.parametrize(
    ("family", "config", "expected"),
    [
        ("mistral", {}, {"sliding_window": 24}),
        ("mistral", {"sliding_window": None}, {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": False}, {"sliding_window": None}),
        ("qwen3_moe", {"num_experts": None, "num_local_experts": EXPERTS}, {"num_experts": EXPERTS}),
        ("gemma3_text", {}, layers(SLIDING, FULL) | {"sliding_window": 24, "attn_logit_softcapping": None}),
        ("gemma3_text", {"sliding_window_pattern": None}, layers(SLIDING, SLIDING)),
        ("gemma3_text", layers(FULL, SLIDING), layers(FULL, SLIDING)),
        ("gemma3_text", {"query_pre_attn_scalar": None}, {"query_pre_attn_scalar": 256}),
    ],
)
def test_what_a_configuration_leaves_out_is_spelled_out(
    tmp_path: Path, family: str, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    _, found, _ = imported(write_directory(tmp_path / "hf", family=family, **config))
    assert {key: found[key] for key in expected} == expected


GEMMA3_ROPE = {
    FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": GEMMA3_ROPE, "rope_theta": None, "rope_scaling": None},
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 10_000.0,
            "rope_scaling": {"type": "linear", "factor": 8.0},
        },
        {"rope_theta": None, "rope_scaling": {"rope_type": "linear", "factor": 8}},
    ],
)
def test_gemmas_two_rotations_are_read_in_both_spellings(tmp_path: Path, spelling: dict[str, Any]) -> None:
    _, found, _ = imported(write_directory(tmp_path / "hf", family="gemma3_text", **spelling))
    assert found["rope_parameters"] == GEMMA3_ROPE


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        (lambda w: w.kv_data[0].pop("gemma3.attention.sliding_window_pattern"), [SLIDING, SLIDING]),
        (lambda w: w.add_sliding_window_pattern([False, True]), [FULL, SLIDING]),
        (lambda w: w.kv_data[0].pop("gemma3.attention.sliding_window"), [FULL, FULL]),
    ],
    ids=["a period of six", "a list", "no window"],
)
def test_gguf_may_leave_gemmas_pattern_out_or_list_it(
    tmp_path: Path, more: Callable[[gguf.GGUFWriter], None], kinds: list[str]
) -> None:
    _, found, _ = imported(GgufSpec("gemma3_text", more=more).write(tmp_path / "tiny.gguf"))
    assert found["layer_types"] == kinds


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_of_a_gemma_that_sees_is_imported_alone(tmp_path: Path, prefix: str) -> None:
    family = FAMILIES["gemma3_text"]
    directory = write_directory(tmp_path / "hf", family="gemma3_text")
    text_config = {key: value for key, value in family.document.items() if key != "architectures"}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text_config}
    (directory / "config.json").write_text(json.dumps(config))
    vision = {"vision_tower.patch.weight": np.ones(4, dtype=np.float32)}
    renamed = {name.replace("model.", prefix, 1): values for name, values in weights("gemma3_text").items()}
    save_file(renamed | vision, directory / "model.safetensors")
    manifest, found, path = imported(directory)
    assert (manifest.family, found["architectures"]) == ("gemma3_text", ["Gemma3ForCausalLM"])
    assert read_weights(path).keys() == weights("gemma3_text").keys()


@pytest.mark.parametrize(("token", "kept"), [("<image_soft_token>", True), ("<another>", False)])
def test_only_the_token_that_models_with_vision_embed_may_lie_beyond_the_vocabulary(
    tmp_path: Path, token: str, kept: bool
) -> None:
    directory = write_directory(tmp_path / "hf", family="gemma3_text")
    path = directory / "tokenizer.json"
    document = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    beyond = FAMILIES["gemma3_text"].document["vocab_size"]
    document["added_tokens"].append({"id": beyond, "content": token} | flags)
    path.write_text(json.dumps(document))
    if not kept:
        assert_refused(directory, rf"tokenizer\.json: has token id {beyond}")
        return
    _, _, path = imported(directory)
    tokenizer = Tokenizer.from_file(str(path.parent / artifacts.TOKENIZER))
    assert tokenizer.token_to_id(token) is None


def remove(tensors: dict[str, NDArray[Any]], name: str) -> None:
    del tensors[name]


def misshape(tensors: dict[str, NDArray[Any]], name: str) -> None:
    tensors[name] = tensors[name][..., :-8]


def rename(tensors: dict[str, NDArray[Any]], name: str) -> None:
    tensors[f"{name}.alien"] = tensors[name]


TENSOR_FAULTS = [
    (remove, "is missing"),
    (misshape, "is .*, the configuration says"),
    (rename, "has no place"),
]


@pytest.mark.parametrize(("spoil", "match"), TENSOR_FAULTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_with_a_wrong_tensor_is_refused_by_it(
    tmp_path: Path, family: str, spoil: Callable[[dict[str, NDArray[Any]], str], None], match: str
) -> None:
    tensors, name = weights(family), f"model.layers.1.{FAMILIES[family].telling}"
    spoil(tensors, name)
    contiguous = {key: np.ascontiguousarray(values) for key, values in tensors.items()}
    directory = write_directory(tmp_path / "hf", contiguous, family=family)
    assert_refused(directory, rf"model\.safetensors: tensor {name}(\.alien)? {match}")


@pytest.mark.parametrize(("spoil", "match"), TENSOR_FAULTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_with_a_wrong_tensor_is_refused_by_it(
    tmp_path: Path, family: str, spoil: Callable[[dict[str, NDArray[Any]], str], None], match: str
) -> None:
    tensors = gguf_weights(weights(family), family)
    name = gguf_name(f"model.layers.1.{FAMILIES[family].telling}", family)
    spoil(tensors, name)
    path = GgufSpec(family, tensors=tensors).write(tmp_path / "tiny.gguf")
    assert_refused(path, rf"tiny\.gguf: tensor {name}(\.alien)? {match}")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("keep", [0.2, 0.7, 0.99])
def test_a_truncated_gguf_of_any_family_is_refused(tmp_path: Path, family: str, keep: float) -> None:
    path = GgufSpec(family).write(tmp_path / "tiny.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert_refused(path, r"tiny\.gguf: is truncated: tensor \S+ ends at byte")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_labelled_as_another_family_is_refused(tmp_path: Path, family: str) -> None:
    other = "qwen3" if family != "qwen3" else "qwen2"
    architecture = gguf.MODEL_ARCH_NAMES[FAMILIES[other].arch]
    path = GgufSpec(other, tensors=gguf_weights(weights(family), family), architecture=architecture).write(
        tmp_path / "tiny.gguf"
    )
    assert_refused(path, r"tiny\.gguf: tensor \S+ (is missing|has no place|is \[)")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_with_a_wrong_vocabulary_is_refused(tmp_path: Path, family: str) -> None:
    spec = GgufSpec(family)
    spec.tokens.append("surplus")
    assert_refused(
        spec.write(tmp_path / "tiny.gguf"), r"tensor token_embd\.weight is \[\d+, 64\], the config"
    )


@pytest.mark.parametrize(
    ("family", "config", "match"),
    [
        ("mistral", {"sliding_window": 0}, "sliding_window: Input should be greater than 0"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window: Input should be False"),
        ("qwen3", {"attention_bias": True}, "attention_bias: Input should be False"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok must be at most num_experts"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size: Field required"),
        ("gemma3_text", {"hidden_activation": "silu"}, "hidden_activation: Input should be 'gelu"),
        ("gemma3_text", {"sliding_window": None}, "sliding_window: Field required"),
        ("gemma3_text", layers(FULL), "layer_types has 1 of 2 layers"),
        ("gemma3_text", layers(FULL, "chunked"), r"layer_types\.1: Input should be 'sliding"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"rope_scaling": {"rope_type": "llama3"}}, "full_attention: .* 'default', 'linear'"),
        ("gemma3_text", {"rope_parameters": [1]}, "rope_parameters must be an object"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers: Input should be less than"),
        ("llama", {"head_dim": 15}, "head_dim must be even"),
    ],
)
def test_a_setting_that_a_family_cannot_have_is_refused_by_key(
    tmp_path: Path, family: str, config: dict[str, Any], match: str
) -> None:
    directory = write_directory(tmp_path / "hf", family=family, **config)
    assert_refused(directory, rf"config\.json: .*{match}")


@pytest.mark.parametrize(
    ("family", "more", "match"),
    [
        ("llama", lambda w: w.add_expert_count(8), r"llama\.expert_count: mixtures"),
        ("llama", lambda w: w.add_rope_dimension_count(8), r"llama\.rope\.dimension_count: another size"),
        (
            "qwen2",
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            r"qwen2\.rope\.scaling\.type: yarn is unsupported",
        ),
    ],
)
def test_gguf_metadata_that_nobody_can_serve_is_refused_by_key(
    tmp_path: Path, family: str, more: Callable[[gguf.GGUFWriter], None], match: str
) -> None:
    path = GgufSpec(family, more=more).write(tmp_path / "tiny.gguf")
    assert_refused(path, rf"tiny\.gguf: metadata {match}")
