"""A worker's life once it has joined: load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kit import lifecycle, log
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from kit.grpc import Server
    from services.worker.adapters.engine_thread import EngineThread
    from services.worker.adapters.registry import RegistryLink
    from services.worker.core.ports import Engine
    from services.worker.servicer import WorkerServicer

SERVICE = "tokenloom.api.worker.v1.WorkerService"
HEALTH_PERIOD_S = 1.0
_log = log.get("worker")


class Life:
    """Moves one worker through its states and tells health and the registry of each."""

    def __init__(
        self,
        server: Server,
        servicer: WorkerServicer,
        thread: EngineThread,
        registry: RegistryLink,
        *,
        drain_grace_s: float,
    ) -> None:
        self._server = server
        self._servicer = servicer
        self._thread = thread
        self._registry = registry
        self._drain_grace_s = drain_grace_s

    async def run(self, stop: asyncio.Event, assigned: str) -> None:
        """Load, serve until `stop` or the engine's end, then drain."""

        def restart(other: str) -> None:
            _log.warning("assigned another model version, restarting", model_version=other)
            stop.set()

        lease = lifecycle.guard(asyncio.create_task(self._registry.keep(assigned, restart), name="lease"))
        self._thread.start()
        await self._thread.settled()
        if self._thread.loaded.done():
            self._thread.ended.add_done_callback(lambda _: stop.set())
            await self._serve(stop)
            await self._drain()
        if self._thread.ended.done() and self._thread.ended.exception():
            lifecycle.fail("the engine ended")
        await self._thread.stop(grace_s=1.0)
        await lifecycle.end(lease)

    async def _serve(self, stop: asyncio.Event) -> None:
        self._servicer.state = worker_pb2.WORKER_STATE_READY
        self._registry.changed()
        health = lifecycle.guard(asyncio.create_task(self._watch_health(), name="health"))
        lifecycle.settle_gc()
        _log.info("ready", **_facts(self._thread.loaded.result()))
        await stop.wait()
        await lifecycle.end(health)

    async def _watch_health(self) -> None:
        was_alive = None
        while True:
            if self._thread.alive != was_alive:
                was_alive = self._thread.alive
                if not was_alive:
                    _log.error("a step hangs")
                await self._set_serving(was_alive)
            await asyncio.sleep(HEALTH_PERIOD_S)

    async def _drain(self) -> None:
        """Be routed around first, then let the scheduler end its stream."""
        _log.info("draining", grace_s=self._drain_grace_s)
        self._servicer.state = worker_pb2.WORKER_STATE_DRAINING
        await self._set_serving(False)
        self._registry.changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_grace_s):
                await self._servicer.idle.wait()
        _log.info("drained", complete=self._servicer.idle.is_set())

    async def _set_serving(self, serving: bool) -> None:
        for name in ("", SERVICE):
            await self._server.set_serving(name, serving)


def _facts(engine: Engine) -> dict[str, object]:
    return {
        "model_version": engine.model_version,
        "pages": engine.page_count,
        "slots": engine.slot_count,
        "max_step_tokens": engine.max_step_tokens,
    }
