"""Hugging Face's config.json from GGUF metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.registry.importers.families.rope import DEFAULT_THETA
from services.registry.importers.gguf_families import GGUF_FAMILIES, naming
from services.registry.importers.gguf_rope import shortest
from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_families import GgufFamily
    from services.registry.importers.gguf_file import GgufFile


def family_of(file: GgufFile) -> GgufFamily:
    """The family of the file's architecture."""
    name = _architecture(file)
    if name not in GGUF_FAMILIES:
        supported = ", ".join(GGUF_FAMILIES)
        raise SourceError(file.path, f"architecture {name} is unsupported; supported: {supported}")
    return GGUF_FAMILIES[name]


def config_of(file: GgufFile, vocab_size: int, eos: tuple[int, ...], bos: int | None) -> dict[str, Any]:
    """The model's configuration in Hugging Face keys."""
    family, name = family_of(file), _architecture(file)
    heads = file.metadata(f"{name}.attention.head_count", int)
    hidden = file.metadata(f"{name}.embedding_length", int)
    head_dim = file.metadata(f"{name}.attention.key_length", int, hidden // max(heads, 1))
    _refuse_oddities(file, name, head_dim)
    config = {
        "hidden_size": hidden,
        "intermediate_size": file.metadata(f"{name}.feed_forward_length", int),
        "num_hidden_layers": file.metadata(f"{name}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": file.metadata(f"{name}.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "max_position_embeddings": file.metadata(f"{name}.context_length", int),
        "rms_norm_eps": shortest(file.metadata(f"{name}.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": shortest(file.metadata(f"{name}.rope.freq_base", float, DEFAULT_THETA)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": vocab_size,
        "torch_dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": list(eos),
    }
    return naming(family.config) | config | family.describe(file, config)


def _architecture(file: GgufFile) -> str:
    return file.metadata("general.architecture", str)


def _refuse_oddities(file: GgufFile, name: str, head_dim: int) -> None:
    for key in ("attention.value_length", "rope.dimension_count"):
        if file.metadata(f"{name}.{key}", int, head_dim) != head_dim:
            raise SourceError(
                file.path, f"metadata {name}.{key}: another size than the head's {head_dim} is unsupported"
            )
    kind = file.metadata(f"{name}.rope.scaling.type", str, "none")
    if kind != "none" and name != "gemma3":
        raise SourceError(
            file.path, f"metadata {name}.rope.scaling.type: {kind} is unsupported; supported: none"
        )
