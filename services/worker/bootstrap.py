"""Puts a worker together: listen, join the registry, and hand the parts to its life."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from kit import lifecycle, log, metrics
from kit.grpc import LANE_MESSAGE_BYTES, Server, channel
from services.worker.adapters.engine_thread import EngineThread
from services.worker.adapters.metrics import WorkerMetrics
from services.worker.adapters.registry import Identity, RegistryLink
from services.worker.core.addresses import advertised
from services.worker.core.ports import Engine
from services.worker.engine import EngineConfig, load_engine
from services.worker.life import SERVICE, Life
from services.worker.servicer import WorkerServicer
from tokenloom.api.registry.v1 import registry_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2_grpc

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from services.worker.config import WorkerConfig
    from tokenloom.api.registry.v1 import registry_pb2

T = TypeVar("T")
LoadEngine = Callable[[Path], Engine]
CALLERS = {SERVICE: ("scheduler",)}
_log = log.get("worker")


async def serve(
    config: WorkerConfig,
    stop: asyncio.Event,
    load: LoadEngine | None = None,
    registry: CollectorRegistry = metrics.REGISTRY,
) -> None:
    """Run a worker until `stop`; `load` replaces the engine, and its metrics go to `registry`."""
    metrics_server, metrics_url = metrics.serve(config.metrics_listen)
    servicer = WorkerServicer(config.worker_id, uuid.uuid4().hex)
    server = Server(
        config.worker_listen, max_message_bytes=LANE_MESSAGE_BYTES, tls=config.tls, allowed=CALLERS
    )
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.aio)
    target = await server.start([SERVICE])
    reached_at = advertised(target, config.worker_advertise_host)
    _log.info("listening", target=target, reached_at=reached_at, metrics=metrics_url)
    try:
        async with channel(config.registry_target, role="registry", tls=config.tls) as registry_channel:
            link = RegistryLink(
                registry_pb2_grpc.RegistryServiceStub(registry_channel),
                Identity(config.worker_id, reached_at, servicer.incarnation, config.worker_model),
                lambda: servicer.state,
            )
            model = await _unless(stop, link.join())
            if model is not None:
                loading = _loading(load or _engine_loader(config), model)
                thread = EngineThread(loading, WorkerMetrics(registry), hang_s=config.step_hang_s)
                servicer.thread = thread
                life = Life(server, servicer, thread, link, drain_grace_s=config.drain_grace_s)
                await life.run(stop, model.model_version)
    finally:
        await server.stop(0)
        metrics_server.shutdown()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    task, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        # Also when we are cancelled: the channel that `work` uses closes next.
        await lifecycle.end(task, stopping)


def _loading(load: LoadEngine, model: registry_pb2.ModelVersion) -> Callable[[], Engine]:
    directory = Path(unquote(urlparse(model.artifact_uri).path))

    def run() -> Engine:
        _log.info("loading", model_version=model.model_version, artifact=str(directory))
        started = time.monotonic()
        engine = load(directory)
        seconds = round(time.monotonic() - started, 2)
        _log.info("loaded", seconds=seconds, runtime_revision=engine.runtime_revision)
        return engine

    return run


def _engine_loader(config: WorkerConfig) -> LoadEngine:
    settings = EngineConfig(
        dtype=config.worker_dtype,
        device=config.worker_device,
        kernels=config.worker_kernels,
        page_size=config.page_size,
        page_count=config.page_count,
        kv_bytes=config.kv_bytes,
        slot_count=config.slot_count,
        max_step_tokens=config.max_step_tokens,
        threads=config.worker_threads,
    )
    return lambda directory: load_engine(directory, settings)
