"""Llama: RMS norms, rotary positions, grouped-query attention, gated SiLU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.worker.engine.spec import equal_layers, read_spec

if TYPE_CHECKING:
    from services.worker.engine.spec import Config, ModelSpec


def read(config: Config) -> ModelSpec:
    """Read a Llama."""
    bias = bool(config.get("attention_bias", False))
    return replace(
        read_spec(config, equal_layers(config)),
        qkv_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )
