"""Qwen2: a Llama with biases on query, key and value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.worker.engine.errors import UnsupportedModelError
from services.worker.engine.spec import equal_layers, read_spec

if TYPE_CHECKING:
    from services.worker.engine.spec import Config, ModelSpec


def read(config: Config) -> ModelSpec:
    """Read a Qwen2 or Qwen2.5."""
    refuse_window(config)
    return replace(read_spec(config, equal_layers(config)), qkv_bias=True)


def refuse_window(config: Config) -> None:
    """No published Qwen switches its window on."""
    if config.get("use_sliding_window"):
        raise UnsupportedModelError("use_sliding_window is not supported for Qwen; supported: false")
