"""Puts a worker together and lives its life: listen, join, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
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
from services.worker.core.ports import Engine
from services.worker.engine import EngineConfig, load_engine
from services.worker.servicer import WorkerServicer
from tokenloom.api.registry.v1 import registry_pb2, registry_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2, worker_pb2_grpc

if TYPE_CHECKING:
    from services.worker.config import WorkerConfig

SERVICE = "tokenloom.api.worker.v1.WorkerService"
HEALTH_PERIOD_S = 1.0
T = TypeVar("T")
LoadEngine = Callable[[Path], Engine]
_log = log.get("worker")


async def serve(config: WorkerConfig, stop: asyncio.Event, load: LoadEngine | None = None) -> None:
    """Run a worker until `stop`; `load` replaces the engine."""
    metrics_server, metrics_url = metrics.serve(config.metrics_listen)
    incarnation = uuid.uuid4().hex
    servicer = WorkerServicer(config.worker_id, incarnation)
    server = Server(config.worker_listen, max_message_bytes=LANE_MESSAGE_BYTES)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.aio)
    target = await server.start([SERVICE])
    _log.info("listening", target=target, metrics=metrics_url)
    try:
        identity = Identity(config.worker_id, target, incarnation)
        await _live(
            config, stop, load or _torch_engine(config), servicer=servicer, server=server, identity=identity
        )
    finally:
        await server.stop(0)
        metrics_server.shutdown()


async def _live(
    config: WorkerConfig,
    stop: asyncio.Event,
    load: LoadEngine,
    *,
    servicer: WorkerServicer,
    server: Server,
    identity: Identity,
) -> None:
    async with channel(config.registry_target) as registry_channel:
        registry = RegistryLink(
            registry_pb2_grpc.RegistryServiceStub(registry_channel),
            identity,
            lambda: servicer.state,
        )
        model = await _unless(stop, registry.join())
        if model is None:
            return
        thread = EngineThread(lambda: _load(load, model), WorkerMetrics(), hang_s=config.step_hang_s)
        servicer.thread = thread
        thread.start()

        def restart(assigned: str) -> None:
            _log.warning("assigned another model version, restarting", model_version=assigned)
            stop.set()

        keeper = lifecycle.guard(
            asyncio.create_task(registry.keep(model.model_version, restart), name="lease")
        )
        await thread.settled()
        if thread.loaded.done():
            await _serve_steps(stop, thread, servicer, server, registry)
            await _drain(config, servicer, server, registry)
        if thread.ended.done() and thread.ended.exception():
            lifecycle.fail("the engine ended")
        await thread.stop(grace_s=1.0)
        await _cancel(keeper)


async def _serve_steps(
    stop: asyncio.Event,
    thread: EngineThread,
    servicer: WorkerServicer,
    server: Server,
    registry: RegistryLink,
) -> None:
    servicer.state = worker_pb2.WORKER_STATE_READY
    registry.changed()
    health = lifecycle.guard(asyncio.create_task(_watch_health(thread, server), name="health"))
    lifecycle.settle_gc()
    _log.info("ready", **_facts(thread.loaded.result()))
    thread.ended.add_done_callback(lambda _: stop.set())
    await stop.wait()
    await _cancel(health)


async def _watch_health(thread: EngineThread, server: Server) -> None:
    was_alive = None
    while True:
        if thread.alive != was_alive:
            was_alive = thread.alive
            if not was_alive:
                _log.error("a step hangs")
            for name in ("", SERVICE):
                await server.set_serving(name, was_alive)
        await asyncio.sleep(HEALTH_PERIOD_S)


async def _drain(
    config: WorkerConfig, servicer: WorkerServicer, server: Server, registry: RegistryLink
) -> None:
    """Be routed around first, then let the scheduler end its stream."""
    _log.info("draining", grace_s=config.drain_grace_s)
    servicer.state = worker_pb2.WORKER_STATE_DRAINING
    for name in ("", SERVICE):
        await server.set_serving(name, False)
    registry.changed()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(config.drain_grace_s):
            await servicer.idle.wait()
    _log.info("drained", complete=servicer.idle.is_set())


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    task, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        return task.result()
    await _cancel(task)
    return None


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _load(load: LoadEngine, model: registry_pb2.ModelVersion) -> Engine:
    directory = Path(unquote(urlparse(model.artifact_uri).path))
    _log.info("loading", model_version=model.model_version, artifact=str(directory))
    started = time.monotonic()
    engine = load(directory)
    _log.info(
        "loaded", seconds=round(time.monotonic() - started, 2), runtime_revision=engine.runtime_revision
    )
    return engine


def _facts(engine: Engine) -> dict[str, object]:
    return {
        "model_version": engine.model_version,
        "pages": engine.page_count,
        "slots": engine.slot_count,
        "max_step_tokens": engine.max_step_tokens,
    }


def _torch_engine(config: WorkerConfig) -> LoadEngine:
    def load(directory: Path) -> Engine:
        return load_engine(
            directory,
            EngineConfig(
                dtype=config.worker_dtype,
                device=config.worker_device,
                page_size=config.page_size,
                page_count=config.page_count,
                kv_bytes=config.kv_bytes,
                slot_count=config.slot_count,
                max_step_tokens=config.max_step_tokens,
                threads=config.worker_threads,
            ),
        )

    return load
