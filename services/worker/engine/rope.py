"""Rotary position embedding and the scalings of its frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from services.worker.engine.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

FREQUENCIES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every wavelength is stretched by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Base of the frequencies and, where there is one, their scaling.

    rounded: the frequencies are rounded to bfloat16, as in a model that was cast to it as a whole.
    """

    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None
    rounded: bool = False


def read_rope(config: Mapping[str, Any]) -> RopeSpec:
    """Read `rope_parameters`, or the older `rope_theta` with `rope_scaling`."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope_of(config, settings, config.get("rope_theta", 10_000.0))


def rope_of(config: Mapping[str, Any], settings: Mapping[str, Any], theta: float) -> RopeSpec:
    """Read one rotation's settings; `theta` is its base where they name none."""
    theta = float(settings.get("rope_theta", theta))
    return RopeSpec(theta, _scaling(settings), _rounded(config))


def _scaling(settings: Mapping[str, Any]) -> LinearScaling | Llama3Scaling | None:
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(float(settings["factor"]))
    if kind != "llama3":
        supported = "default, linear, llama3"
        raise UnsupportedModelError(f"rope type {kind!r} is not supported; supported: {supported}")
    return Llama3Scaling(
        factor=float(settings["factor"]),
        low_freq_factor=float(settings["low_freq_factor"]),
        high_freq_factor=float(settings["high_freq_factor"]),
        original_context=int(settings["original_max_position_embeddings"]),
    )


def _rounded(config: Mapping[str, Any]) -> bool:
    name = config.get("rope_frequencies")
    if name is not None and name not in FREQUENCIES:
        supported = ", ".join(FREQUENCIES)
        raise UnsupportedModelError(f"rope_frequencies {name!r} is not supported; supported: {supported}")
    return bool(name == "bfloat16")


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair of dimensions: float32 [head_dim / 2]."""
    frequencies = _exact_frequencies(spec, head_dim)
    return frequencies.bfloat16().float() if spec.rounded else frequencies


def _exact_frequencies(spec: RopeSpec, head_dim: int) -> torch.Tensor:
    frequencies = 1.0 / (spec.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if spec.scaling is None:
        return frequencies
    if isinstance(spec.scaling, LinearScaling):
        return frequencies / spec.scaling.factor
    scaling = spec.scaling
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def rotation(
    positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine of each position: two [tokens, 1, head_dim]."""
    angles = positions[:, None, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate [tokens, heads, head_dim] in place."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(swapped, sin)
