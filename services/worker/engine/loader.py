"""From an artifact directory to an engine that takes plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kit import artifacts, log
from services.worker.engine import kv
from services.worker.engine.decoder import Decoder
from services.worker.engine.errors import EngineError
from services.worker.engine.families import read_model
from services.worker.engine.native.build import NativeError, library
from services.worker.engine.native.decoder import NativeDecoder, check
from services.worker.engine.native.pool import NativePool
from services.worker.engine.runner import Runner
from services.worker.engine.sampling import draw
from services.worker.engine.weights import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.engine.batch import Forward, Pool
    from services.worker.engine.config import EngineConfig
    from services.worker.engine.sampling import Sampler
    from services.worker.engine.spec import ModelSpec

# Rises with every change that can alter a result.
ENGINE_REVISION = 3


_log = log.get("engine")


def load(directory: Path, config: EngineConfig) -> Runner:
    """Check the artifact against its manifest, read its weights and set up its page pool."""
    manifest = artifacts.verify(directory)
    document: dict[str, Any] = json.loads((directory / artifacts.CONFIG).read_bytes())
    spec = read_model(document)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    token_bytes = kv.bytes_per_token(spec, getattr(torch, config.dtype))
    held = torch.float32 if config.dtype == "float32" else torch.bfloat16
    weights = Checkpoint(directory / artifacts.WEIGHTS, held, config.device)
    # The pool is created before the weights are packed but takes memory only as its pages are first used.
    pages = kv.page_count(config, token_bytes)
    parts = (
        _native(spec, weights, config, pages)
        or _triton(spec, weights, config, pages)
        or _torch(spec, weights, config, pages)
    )
    return Runner(
        parts.forward,
        parts.pool,
        spec,
        config,
        sampler=parts.sampler,
        model_version=manifest.model_version,
        runtime_revision=_revision(config, parts.backend),
        kv_bytes_per_token=token_bytes,
    )


class _Parts(NamedTuple):
    forward: Forward
    pool: Pool
    sampler: Sampler
    backend: str


def _torch(spec: ModelSpec, weights: Checkpoint, config: EngineConfig, pages: int) -> _Parts:
    pool = kv.PagePool(spec, pages, config.page_size, weights.dtype, config.device)
    return _Parts(Decoder(spec, weights, pool), pool, draw, f"torch-{torch.__version__}")


def _triton(spec: ModelSpec, weights: Checkpoint, config: EngineConfig, pages: int) -> _Parts | None:
    """Triton's forward where a GPU was asked for; without Triton, says so."""
    if config.kernels != "triton" and (config.device != "cuda" or config.kernels != "auto"):
        return None
    try:
        from services.worker.engine import gpu  # noqa: PLC0415 - there is no Triton on most machines
    except ImportError as reason:
        if config.kernels == "triton":
            raise EngineError(f"the Triton kernels cannot be used: {reason}") from reason
        _log.warning("torch computes, more slowly than Triton's kernels", reason=str(reason))
        return None
    if config.device == "cpu" and not gpu.INTERPRETED:
        raise EngineError("the Triton kernels need a GPU")
    pool = gpu.GpuPool(spec, pages, config.page_size, weights.dtype, config.device)
    forward, sampler = gpu.GpuDecoder(spec, weights, pool), gpu.GpuSampler()
    if config.device == "cuda":
        gpu.warm(forward, sampler, slots=config.slot_count, kv_heads=spec.kv_heads)
        forward.record(config.slot_count, gpu.CudaCapture())
    return _Parts(forward, pool, sampler, f"triton-{gpu.VERSION}")


def _native(spec: ModelSpec, weights: Checkpoint, config: EngineConfig, pages: int) -> _Parts | None:
    """The native forward where it can be had; says so where it was wanted and cannot."""
    if config.device != "cpu" or config.kernels not in ("auto", "native"):
        return None
    try:
        check(spec, config.page_size)
        pool = NativePool(spec, pages, config.page_size, getattr(torch, config.dtype))
        threads = torch.get_num_threads()
        forward = NativeDecoder(spec, weights, pool, dtype=config.dtype, threads=threads)
        return _Parts(forward, pool, forward.draw, library().stem)
    except NativeError as reason:
        if config.kernels == "native" or config.dtype == "int8":
            raise EngineError(f"the native kernels cannot be used: {reason}") from reason
        _log.warning("torch computes, several times as slowly as the native kernels", reason=str(reason))
        return None


def _revision(config: EngineConfig, backend: str) -> str:
    if config.device == "cpu":
        device = f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"
    else:
        device = torch.cuda.get_device_name().lower().replace(" ", "-")
    return f"{backend}/{device}/{config.dtype}/{ENGINE_REVISION}"
