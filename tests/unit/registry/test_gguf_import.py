"""GGUF files become artifacts exactly, or are refused by what is wrong with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from kit import artifacts
from services.registry.importers.gguf_rope import llama3_divisors
from services.registry.importers.source import SourceError
from services.registry.importing import import_model
from tests.unit.registry.foreign import VOCAB, GgufSpec, gguf_weights, read_weights, weights

if TYPE_CHECKING:
    from pathlib import Path

Kind = gguf.GGMLQuantizationType
MATRIX = "model.layers.1.self_attn.q_proj.weight"


def import_gguf(tmp_path: Path, spec: GgufSpec) -> Path:
    path = spec.write(tmp_path / "tiny.gguf")
    manifest = import_model(str(path), "tiny", tmp_path / "models", lambda _: None)
    return artifacts.locate(tmp_path / "models", manifest.model_version)


def assert_refused(tmp_path: Path, spec: GgufSpec, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        import_gguf(tmp_path, spec)
    assert not any((tmp_path / "models").glob("**/*")), "something was left half-imported"


@pytest.mark.parametrize(("kind", "dtype"), [(Kind.F32, "BF16"), (Kind.BF16, "BF16"), (Kind.F16, "F16")])
def test_float_weights_come_through_exactly_with_query_and_key_rows_in_halves(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, dtype: str
) -> None:
    imported = read_weights(import_gguf(tmp_path, GgufSpec(kind=kind)) / artifacts.WEIGHTS)
    assert imported.keys() == weights().keys()
    for name, values in weights().items():
        exact = (
            values.astype(np.float16).astype(np.float32) if kind is Kind.F16 and values.ndim > 1 else values
        )
        np.testing.assert_array_equal(imported[name][1], exact, err_msg=name)
    assert imported[MATRIX][0] == dtype


def test_float32_weights_that_bfloat16_would_change_stay_float32(tmp_path: Path) -> None:
    source = weights()
    source[MATRIX] = source[MATRIX] * np.float32(1.001)
    imported = read_weights(import_gguf(tmp_path, GgufSpec(tensors=gguf_weights(source))) / artifacts.WEIGHTS)
    assert {name for name, (dtype, _) in imported.items() if dtype == "F32"} == {MATRIX}
    np.testing.assert_array_equal(imported[MATRIX][1], source[MATRIX])


def test_the_configuration_speaks_hugging_face(tmp_path: Path) -> None:
    artifact = import_gguf(tmp_path, GgufSpec())
    config = json.loads((artifact / artifacts.CONFIG).read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_key_value_heads"], config["head_dim"], config["vocab_size"]) == (2, 16, VOCAB)
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (1e-5, 5e5, False)
    assert "rope_scaling" not in config
    manifest = artifacts.load_manifest(artifact)
    assert (manifest.eos_token_ids, manifest.bos_token_id, manifest.licence) == ((1, 2), 0, "mit")


def test_without_an_output_head_the_embeddings_are_tied(tmp_path: Path) -> None:
    tensors = gguf_weights(weights())
    del tensors["output.weight"]
    artifact = import_gguf(tmp_path, GgufSpec(tensors=tensors))
    assert json.loads((artifact / artifacts.CONFIG).read_text())["tie_word_embeddings"] is True
    assert "lm_head.weight" not in read_weights(artifact / artifacts.WEIGHTS)


def test_llama_3_rope_scaling_is_recovered_from_its_frequencies(tmp_path: Path) -> None:
    divisors = np.array(llama3_divisors(16, 500000.0, 8.0, 64), dtype=np.float32)
    assert len(set(divisors.tolist())) > 2, "the case must have a smooth part"
    spec = GgufSpec(tensors=gguf_weights(weights()) | {"rope_freqs.weight": divisors})
    config = json.loads((import_gguf(tmp_path, spec) / artifacts.CONFIG).read_text())
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def test_another_rope_scaling_is_refused(tmp_path: Path) -> None:
    odd = np.linspace(1, 3, 8, dtype=np.float32)
    spec = GgufSpec(tensors=gguf_weights(weights()) | {"rope_freqs.weight": odd})
    assert_refused(tmp_path, spec, r"rope_freqs\.weight: not a Llama 3 scaling")


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "hello123", ["hello", "1", "2", "3"]),
        ("gpt-2", "hello123", ["hello", "123"]),
        ("llama-bpe", "hello1231", ["<s>", "hello", "123", "1"]),
        ("smollm", "hello<|user|>é", ["hello", "<|user|>", "Ã", "©"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_model_does(
    tmp_path: Path, pre: str, text: str, tokens: list[str]
) -> None:
    tokenizer = Tokenizer.from_file(str(import_gguf(tmp_path, GgufSpec(pre=pre)) / artifacts.TOKENIZER))
    encoding = tokenizer.encode(text)
    assert encoding.tokens == tokens
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False).removeprefix("<s>") == text


@pytest.mark.parametrize(
    ("pre", "add_bos", "first"), [("smollm", True, "<s>"), ("llama-bpe", False, "hello")]
)
def test_bos_is_added_to_raw_prompts_as_the_file_says(
    tmp_path: Path, pre: str, add_bos: bool, first: str
) -> None:
    artifact = import_gguf(tmp_path, GgufSpec(pre=pre, add_bos=add_bos))
    tokenizer = Tokenizer.from_file(str(artifact / artifacts.TOKENIZER))
    assert tokenizer.encode("hello").tokens[0] == first
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["hello"]


@pytest.mark.parametrize(
    ("spoiled", "match"),
    [
        (
            {"pre": "mystery"},
            r"tokenizer\.ggml\.pre: mystery is unsupported; supported: deepseek-r1-qwen, gpt-2, llama-bpe",
        ),
        ({"tokenizer_model": "t5"}, r"tokenizer\.ggml\.model: t5 is unsupported; supported: gpt2, llama"),
        (
            {"architecture": "falcon"},
            "architecture falcon is unsupported; supported: llama, qwen2, qwen3, qwen3moe, gemma3",
        ),
        ({"merges": ["h e", "q zzz"]}, r"merges: 'q zzz' names no token"),
        ({"tokens": ["<s>"] * VOCAB}, r"tokenizer\.ggml\.tokens holds a token twice"),
    ],
)
def test_unsupported_or_broken_metadata_is_refused_by_key(
    tmp_path: Path, spoiled: dict[str, Any], match: str
) -> None:
    assert_refused(tmp_path, GgufSpec(**spoiled), match)


def test_an_unsupported_type_is_refused_by_tensor_with_the_supported_ones(tmp_path: Path) -> None:
    tensors = gguf_weights(weights())
    del tensors["blk.1.ffn_up.weight"]
    block = np.zeros((256, 84), dtype=np.uint8)
    spec = GgufSpec(tensors=tensors, raw={"blk.1.ffn_up.weight": (block, Kind.Q2_K)})
    assert_refused(
        tmp_path,
        spec,
        r"tiny\.gguf: tensor blk\.1\.ffn_up\.weight: type Q2_K .*F32, F16, BF16, Q8_0, .*Q6_K",
    )


def spoil_missing(tensors: dict[str, Any]) -> None:
    del tensors["blk.1.attn_v.weight"]


def spoil_shape(tensors: dict[str, Any]) -> None:
    tensors["blk.0.attn_k.weight"] = np.zeros((64, 64), dtype=np.float32)


def spoil_vocabulary(tensors: dict[str, Any]) -> None:
    tensors["token_embd.weight"] = np.zeros((VOCAB + 1, 64), dtype=np.float32)


def spoil_name(tensors: dict[str, Any]) -> None:
    tensors["blk.0.attn_q_norm.weight"] = np.ones(16, dtype=np.float32)


def spoil_value(tensors: dict[str, Any]) -> None:
    tensors["blk.0.ffn_down.weight"][3, 3] = np.nan


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (spoil_missing, r"tensor blk\.1\.attn_v\.weight is missing"),
        (spoil_shape, r"tensor blk\.0\.attn_k\.weight is \[64, 64\], the configuration says \[32, 64\]"),
        (spoil_vocabulary, rf"tensor token_embd\.weight is \[{VOCAB + 1}, 64\]"),
        (spoil_name, r"tensor blk\.0\.attn_q_norm\.weight has no place"),
        (spoil_value, r"tensor blk\.0\.ffn_down\.weight holds values that are not finite"),
    ],
)
def test_wrong_tensors_are_refused_by_name_and_leave_nothing(tmp_path: Path, spoil: Any, match: str) -> None:
    tensors = gguf_weights(weights())
    spoil(tensors)
    assert_refused(tmp_path, GgufSpec(tensors=tensors), match)


@pytest.mark.parametrize(
    ("keep", "match"),
    [
        (0, "is empty"),
        (3, "is truncated or damaged in its first bytes"),
        (20, "is truncated or damaged in its first bytes"),
        (60, "is truncated or damaged in metadata general.architecture"),
        (3000, r"is truncated or damaged in metadata tokenizer\.ggml\.tokens"),
        (-100, r"is truncated: tensor \S+\.weight ends at byte"),
    ],
)
def test_a_truncated_file_is_refused_by_name_wherever_it_was_cut(
    tmp_path: Path, keep: int, match: str
) -> None:
    path = GgufSpec().write(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    assert_file_refused(path, match)


def test_a_file_that_ends_among_the_tensors_entries_is_refused_by_the_entry(tmp_path: Path) -> None:
    path = GgufSpec().write(tmp_path / "cut.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"blk.1.") + 40])
    assert_file_refused(path, r"is truncated or damaged in the entry of tensor \S+")


@pytest.mark.parametrize(
    ("found", "spoiled", "match"),
    [
        (b"GGUF\x03", b"GGML\x03", "is not GGUF"),
        (b"GGUF\x03", b"GGUF\x01", r"is GGUF of version 1; supported: 2, 3"),
        (b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight", r"tensor blk\.0\.ffn_up\.weight is there twice"),
        (b"output_norm.weight", b"output_\xff\xffrm.weight", r"is damaged in the entry of .*: not UTF-8"),
        (
            b"llama.block_count\x04",
            b"llama.block_count\x63",
            r"is damaged in .*block_count: values of type 99",
        ),
        (b"llama.block_count\x04", b"llama.block_size_\x04", r"metadata llama\.block_count is missing"),
    ],
)
def test_a_damaged_header_is_refused_by_its_entry(
    tmp_path: Path, found: bytes, spoiled: bytes, match: str
) -> None:
    path = GgufSpec().write(tmp_path / "cut.gguf")
    data = path.read_bytes()
    assert found in data
    path.write_bytes(data.replace(found, spoiled))
    assert_file_refused(path, match)


def test_a_count_beyond_the_file_is_refused_at_once(tmp_path: Path) -> None:
    path = GgufSpec().write(tmp_path / "cut.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\xff" * 16 + data[24:])
    assert_file_refused(path, "is (truncated or )?damaged in metadata")


def assert_file_refused(path: Path, match: str) -> None:
    models_dir = path.parent / "models"
    with pytest.raises(SourceError, match=rf"cut\.gguf: {match}"):
        import_model(str(path), "tiny", models_dir, lambda _: None)
    assert not models_dir.exists()
