"""Hugging Face's config.json from GGUF metadata."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_file import GgufFile

SUPPORTED_ARCHITECTURES = ("llama",)
ROPE_FREQS = "rope_freqs.weight"
_LOW_FREQ, _HIGH_FREQ = 1.0, 4.0
_ORIGINAL_CONTEXTS = [2**exponent for exponent in range(4, 21)]


def config_of(file: GgufFile, vocab_size: int, eos: tuple[int, ...], bos: int | None) -> dict[str, Any]:
    """The model's configuration in Hugging Face keys."""
    architecture = file.metadata("general.architecture", str)
    if architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise SourceError(file.path, f"architecture {architecture} is unsupported; supported: {supported}")
    if file.metadata("llama.expert_count", int, 0):
        raise SourceError(file.path, "metadata llama.expert_count: mixtures of experts are unsupported")
    heads = file.metadata("llama.attention.head_count", int)
    hidden = file.metadata("llama.embedding_length", int)
    head_dim = file.metadata("llama.attention.key_length", int, hidden // max(heads, 1))
    if file.metadata("llama.rope.dimension_count", int, head_dim) != head_dim:
        raise SourceError(file.path, "metadata llama.rope.dimension_count: partial rotation is unsupported")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": file.metadata("llama.feed_forward_length", int),
        "num_hidden_layers": file.metadata("llama.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": file.metadata("llama.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": file.metadata("llama.context_length", int),
        "rms_norm_eps": _shortest(file.metadata("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _shortest(file.metadata("llama.rope.freq_base", float, 10000.0)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": vocab_size,
        "torch_dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": list(eos),
    }
    scaling = _rope_scaling(file, config)
    return config | ({"rope_scaling": scaling} if scaling else {})


def _shortest(value: float) -> float:
    """Undo the detour through float32: 9.9999997e-06 was written as 1e-05."""
    return float(str(np.float32(value)))


def _rope_scaling(file: GgufFile, config: dict[str, Any]) -> dict[str, Any] | None:
    kind = file.metadata("llama.rope.scaling.type", str, "none")
    if kind != "none":
        raise SourceError(
            file.path, f"metadata llama.rope.scaling.type: {kind} is unsupported; supported: none"
        )
    if ROPE_FREQS not in file.tensors:
        return None
    divisors = np.asarray(file.tensors[ROPE_FREQS].data, dtype=np.float64)
    if divisors.shape != (config["head_dim"] // 2,):
        raise SourceError(file.path, f"tensor {ROPE_FREQS}: {divisors.shape[0]} values for half a head")
    if np.all(divisors == 1.0):
        return None
    factor = float(divisors.max())
    for original in _ORIGINAL_CONTEXTS:
        expected = llama3_divisors(config["head_dim"], config["rope_theta"], factor, original)
        if np.allclose(divisors, expected, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW_FREQ,
                "high_freq_factor": _HIGH_FREQ,
                "original_max_position_embeddings": original,
            }
    raise SourceError(file.path, f"tensor {ROPE_FREQS}: not a Llama 3 scaling, the only one supported")


def llama3_divisors(head_dim: int, theta: float, factor: float, original: int) -> list[float]:
    """What Llama 3's scaling divides each rotary frequency by (Llama 3.1 reference, `apply_scaling`)."""
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < original / _HIGH_FREQ:
            divisors.append(1.0)
        elif wavelength > original / _LOW_FREQ:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - _LOW_FREQ) / (_HIGH_FREQ - _LOW_FREQ)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors
