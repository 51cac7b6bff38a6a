"""Rotary settings from GGUF metadata."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_file import GgufFile

ROPE_FREQS = "rope_freqs.weight"
_LOW_FREQ, _HIGH_FREQ = 1.0, 4.0
_ORIGINAL_CONTEXTS = [2**exponent for exponent in range(4, 21)]


def shortest(value: float) -> float:
    """Undo the detour through float32: 9.9999997e-06 was written as 1e-05."""
    return float(str(np.float32(value)))


def frequency_scaling(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Llama 3's `rope_scaling`, recovered from the divisors that stand for it; empty without them."""
    if ROPE_FREQS not in file.tensors:
        return {}
    stored = file.tensors[ROPE_FREQS]
    if stored.kind.name != "F32" or stored.shape != (config["head_dim"] // 2,):
        raise SourceError(file.path, f"tensor {ROPE_FREQS} is not F32 [{config['head_dim'] // 2}]")
    divisors = stored.rows[0].view(np.float32).astype(np.float64)
    if np.all(divisors == 1.0):
        return {}
    factor = float(divisors.max())
    for original in _ORIGINAL_CONTEXTS:
        expected = llama3_divisors(config["head_dim"], config["rope_theta"], factor, original)
        if np.allclose(divisors, expected, rtol=1e-4):
            scaling = {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW_FREQ,
                "high_freq_factor": _HIGH_FREQ,
                "original_max_position_embeddings": original,
            }
            return {"rope_scaling": scaling}
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
