"""Qwen3: norms of each query and key head, no biases, and heads of a size of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.worker.engine.families.qwen2 import refuse_window
from services.worker.engine.spec import equal_layers, read_spec

if TYPE_CHECKING:
    from services.worker.engine.spec import Config, LayerSpec, ModelSpec


def read(config: Config) -> ModelSpec:
    """Read a dense Qwen3."""
    return with_layers(config, equal_layers(config))


def with_layers(config: Config, layers: tuple[LayerSpec, ...]) -> ModelSpec:
    """Read a Qwen3 with these layers."""
    refuse_window(config)
    bias = bool(config.get("attention_bias", False))
    return replace(read_spec(config, layers), head_norms=True, qkv_bias=bias, attention_out_bias=bias)
