"""Mistral: a Llama whose layers may all see only a window of the last tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.engine.spec import equal_layers, read_spec

if TYPE_CHECKING:
    from services.worker.engine.spec import Config, ModelSpec


def read(config: Config) -> ModelSpec:
    """Read a Mistral."""
    return read_spec(config, equal_layers(config, window=config.get("sliding_window")))
