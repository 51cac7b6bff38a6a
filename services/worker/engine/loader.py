"""From an artifact directory to an engine that takes plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from kit import artifacts
from services.worker.engine import kv
from services.worker.engine.decoder import Decoder
from services.worker.engine.families import read_model
from services.worker.engine.runner import Runner
from services.worker.engine.weights import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.engine.config import EngineConfig

# Rises with every change that can alter a result.
ENGINE_REVISION = 1


def load(directory: Path, config: EngineConfig) -> Runner:
    """Check the artifact against its manifest, read its weights and set up its page pool."""
    manifest = artifacts.verify(directory)
    document: dict[str, Any] = json.loads((directory / artifacts.CONFIG).read_bytes())
    spec = read_model(document)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    dtype = getattr(torch, config.dtype)
    token_bytes = kv.bytes_per_token(spec, dtype)
    weights = Checkpoint(directory / artifacts.WEIGHTS, dtype, config.device)
    # The pool is created before the weights are packed but takes memory only as its pages are first used.
    pool = kv.PagePool(spec, kv.page_count(config, token_bytes), config.page_size, dtype, config.device)
    return Runner(
        Decoder(spec, weights, pool),
        pool,
        spec,
        config,
        model_version=manifest.model_version,
        runtime_revision=_revision(config),
        kv_bytes_per_token=token_bytes,
    )


def _revision(config: EngineConfig) -> str:
    if config.device == "cpu":
        device = f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"
    else:
        device = torch.cuda.get_device_name().lower().replace(" ", "-")
    return f"torch-{torch.__version__}/{device}/{config.dtype}/{ENGINE_REVISION}"
