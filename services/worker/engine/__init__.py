"""The engine: a model version's weights, its KV pages and one step at a time. Importing it loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.engine.config import EngineConfig
from services.worker.engine.errors import BadWeightsError, EngineError, UnsupportedModelError
from services.worker.engine.threads import prepare_threads

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.core.ports import Engine

__all__ = ["BadWeightsError", "EngineConfig", "EngineError", "UnsupportedModelError", "load_engine"]


def load_engine(artifact_dir: Path, config: EngineConfig) -> Engine:
    """Load an artifact (config.json, model.safetensors, manifest.json where there is one) for serving."""
    prepare_threads()
    from services.worker.engine.loader import load  # noqa: PLC0415 - torch reads its environment at import

    return load(artifact_dir, config)
