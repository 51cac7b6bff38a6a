"""Hugging Face directories become artifacts byte for byte, or are refused by file and tensor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kit import artifacts
from services.registry.importers.source import SourceError
from services.registry.importing import import_model
from tests.unit.registry.foreign import CONFIG, TEMPLATE, VOCAB, read_weights, weights, write_directory

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINTS = Path(__file__).parents[2] / "data" / "engine"
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def import_directory(directory: Path) -> Path:
    models_dir = directory.parent / "models"
    manifest = import_model(str(directory), "tiny", models_dir, lambda _: None)
    return artifacts.locate(models_dir, manifest.model_version)


def test_weights_configuration_and_tokenizer_are_kept(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "hf")
    (directory / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Tiny\n")
    artifact = import_directory(directory)
    imported = read_weights(artifact / artifacts.WEIGHTS)
    assert imported.keys() == weights().keys()
    for name, values in weights().items():
        assert imported[name][0] == "F32"
        np.testing.assert_array_equal(imported[name][1], values)
    assert (artifact / "tokenizer.json").read_bytes() == (directory / "tokenizer.json").read_bytes()
    assert json.loads((artifact / "config.json").read_text()).items() >= CONFIG.items()
    assert (artifact / artifacts.CHAT_TEMPLATE).read_text() == TEMPLATE
    manifest = artifacts.verify(artifact)
    assert (manifest.eos_token_ids, manifest.bos_token_id, manifest.licence) == ((1, 2), 0, "apache-2.0")
    assert (manifest.context_length, manifest.source) == (512, "huggingface:hf")


@pytest.mark.parametrize(
    "source", sorted(CHECKPOINTS.glob("*/config.json")), ids=lambda path: path.parent.name
)
def test_a_checkpoint_that_transformers_saved_is_imported_whole(tmp_path: Path, source: Path) -> None:
    directory = tmp_path / "hf"
    shutil.copytree(source.parent, directory)
    artifact = import_directory(directory)
    saved = read_weights(directory / "model.safetensors")
    imported = read_weights(artifact / artifacts.WEIGHTS)
    assert imported.keys() == saved.keys()
    for name, (dtype, values) in saved.items():
        assert imported[name][0] == dtype
        np.testing.assert_array_equal(imported[name][1], values)
    document, kept = (json.loads((place / "config.json").read_text()) for place in (directory, artifact))
    assert kept.items() >= document.items()
    assert artifacts.load_manifest(artifact).family == document["model_type"]


def test_importing_twice_gives_the_same_version_and_leaves_nothing_else(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "hf")
    assert import_directory(directory) == import_directory(directory)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny"]


def test_shards_are_joined_into_the_same_weights(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "hf")
    whole = artifacts.load_manifest(import_directory(directory))
    shard(directory)
    assert artifacts.load_manifest(import_directory(directory)).files == whole.files


def shard(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for number, names in enumerate(np.array_split(sorted(weights()), 3)):
        file = f"model-{number}.safetensors"
        save_file({str(name): weights()[name] for name in names}, directory / file)
        weight_map |= {str(name): file for name in names}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "rope",
    [{"rope_parameters": LLAMA3 | {"rope_type": "llama3"}}, {"rope_scaling": LLAMA3 | {"type": "llama3"}}],
)
def test_both_spellings_of_the_rope_settings_are_read(tmp_path: Path, rope: dict[str, Any]) -> None:
    artifact = import_directory(write_directory(tmp_path / "hf", **rope))
    expected = LLAMA3 | {"rope_type": "llama3", "rope_theta": 500000.0}
    assert json.loads((artifact / "config.json").read_text())["rope_parameters"] == expected


def test_a_copy_of_tied_embeddings_is_left_out(tmp_path: Path) -> None:
    artifact = import_directory(write_directory(tmp_path / "hf", tie_word_embeddings=True))
    assert "lm_head.weight" not in read_weights(artifact / artifacts.WEIGHTS)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "GPT2LMHeadModel is unsupported; supported: LlamaForCausalLM, Mistral.*, Qwen2.*, Gemma3",
        ),
        ({"architectures": None}, "architecture none named is unsupported"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "'yarn' found using 'rope_type' .*'default', 'llama3'",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}},
            "low_freq_factor: Field required",
        ),
        ({"attention_bias": True}, "attention_bias: Input should be False"),
        ({"hidden_size": "64"}, "hidden_size: Input should be a valid integer"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_configuration_nobody_can_serve_is_refused_by_key(
    tmp_path: Path, config: dict[str, Any], match: str
) -> None:
    directory = write_directory(tmp_path / "hf", **config)
    with pytest.raises(SourceError, match=rf"config\.json: .*{match}"):
        import_directory(directory)


def spoil_truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def spoil_header(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(b"\xff" * 16 + path.read_bytes()[16:])


def spoil_missing_tensor(directory: Path) -> None:
    tensors = weights()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, directory / "model.safetensors")


def spoil_shape(directory: Path) -> None:
    save_file(
        weights() | {"model.norm.weight": np.ones(63, dtype=np.float32)}, directory / "model.safetensors"
    )


def spoil_type(directory: Path) -> None:
    save_file(weights() | {"model.norm.weight": np.ones(64, dtype=np.int8)}, directory / "model.safetensors")


def spoil_extra(directory: Path) -> None:
    extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(16, dtype=np.float32)}
    save_file(weights() | extra, directory / "model.safetensors")


def spoil_vocabulary(directory: Path) -> None:
    document = json.loads((directory / "tokenizer.json").read_text())
    document["model"]["vocab"]["surplus"] = VOCAB
    (directory / "tokenizer.json").write_text(json.dumps(document))


def spoil_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{")


def spoil_shard(directory: Path) -> None:
    shard(directory)
    (directory / "model-1.safetensors").unlink()


def spoil_index(directory: Path) -> None:
    shard(directory)
    path = directory / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-1.", "../model-1."))


def spoil_listing(directory: Path) -> None:
    shard(directory)
    index = {"weight_map": {"model.norm.weight": ["model-1.safetensors"]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def spoil_nesting(directory: Path) -> None:
    (directory / "config.json").write_text("[" * 100_000)


def spoil_header_with(directory: Path, header: bytes) -> None:
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def spoil_header_nesting(directory: Path) -> None:
    spoil_header_with(directory, b"[" * 100_000)


def spoil_extent(directory: Path) -> None:
    spoil_header_with(directory, b'{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}')


def spoil_stop(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": VOCAB}))


def spoil_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (spoil_truncate, r"model\.safetensors: is truncated: tensor \S+ ends at byte"),
        (spoil_header, r"model\.safetensors: is truncated or damaged: its header"),
        (
            spoil_missing_tensor,
            r"model\.safetensors: tensor \S+\.1\.mlp\.up_proj\.weight is missing",
        ),
        (
            spoil_shape,
            r"safetensors: tensor model\.norm\.weight is \[63\], the configuration says \[64\]",
        ),
        (spoil_type, r"tensor model\.norm\.weight: type I8 is unsupported; supported: F32, BF16, F16"),
        (spoil_extra, r"tensor model\.layers\.0\.self_attn\.q_norm\.weight has no place"),
        (
            spoil_vocabulary,
            rf"tokenizer\.json: has token id {VOCAB}, .* allows 0 to {VOCAB - 1}",
        ),
        (spoil_tokenizer, r"tokenizer\.json: is not a tokenizer"),
        (spoil_shard, r"model-1\.safetensors: is missing, though the index names it"),
        (spoil_index, r"model-1\.safetensors: is missing, though the index names it"),
        (spoil_listing, r"index\.json: has no weight_map"),
        (spoil_nesting, r"config\.json: it is nested too deeply"),
        (spoil_header_nesting, r"model\.safetensors: is damaged: its header"),
        (spoil_extent, r"model\.safetensors: tensor a: damaged header"),
        (spoil_stop, rf"eos_token_id: {VOCAB} is not a token id"),
        (spoil_weights, r"model\.safetensors: is missing"),
    ],
)
def test_a_damaged_directory_is_refused_by_file_and_tensor_and_leaves_nothing(
    tmp_path: Path, spoil: Callable[[Path], None], match: str
) -> None:
    directory = write_directory(tmp_path / "hf")
    spoil(directory)
    with pytest.raises(SourceError, match=match):
        import_directory(directory)
    assert not (tmp_path / "models").exists()
