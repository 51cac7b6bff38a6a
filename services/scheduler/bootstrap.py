"""Puts the scheduler together and lives its life: listen, attach, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from kit import lifecycle, log, metrics
from kit.bus import Bus, Message
from kit.grpc import LANE_MESSAGE_BYTES, Server
from kit.outbox import Outbox
from services.scheduler.adapters.closer import Closer
from services.scheduler.adapters.epochs import EpochStore
from services.scheduler.adapters.fleet import Fleet
from services.scheduler.adapters.metrics import SchedulerMetrics
from services.scheduler.adapters.step_loop import StepLoop
from services.scheduler.core.desk import Desk
from services.scheduler.core.errors import unavailable
from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.ownership import Ownership
from services.scheduler.core.records import Records
from services.scheduler.servicer import SchedulerServicer
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from prometheus_client import CollectorRegistry

    from services.scheduler.config import SchedulerConfig

SERVICE = "tokenloom.api.scheduler.v1.SchedulerService"
CALLERS = {SERVICE: ("gateway",), f"{SERVICE}/Inspect": ("gateway", "operator")}
DEPLOYMENT_STREAM, WORKER_SUBJECT = "DEPLOYMENT", "deployment.v1.worker.*"
FLUSH_S = 3.0
_log = log.get("scheduler")


async def serve(
    config: SchedulerConfig, stop: asyncio.Event, registry: CollectorRegistry = metrics.REGISTRY
) -> None:
    """Run the scheduler until `stop`; its metrics go to `registry`."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    epochs = EpochStore(config.state_dir / "epoch")
    outbox = Outbox(config.state_dir / "outbox", max_bytes=config.outbox_bytes)
    outbox.open()
    metrics_server, metrics_url = metrics.serve(config.metrics_listen)
    desk = _desk(config)
    closer = Closer(outbox, desk)
    exported = SchedulerMetrics(registry)
    exported.outbox_events.set_function(lambda: outbox.pending)
    exported.outbox_age.set_function(lambda: outbox.oldest_age_s)
    steps = StepLoop(desk, exported, closer, depth=config.pipeline_depth, probe_s=config.probe_s)
    fleet = Fleet(steps, epochs, step_timeout_s=config.step_timeout_s, tls=config.tls)
    server = Server(
        config.scheduler_listen, max_message_bytes=LANE_MESSAGE_BYTES, tls=config.tls, allowed=CALLERS
    )
    servicer = SchedulerServicer(
        steps, epoch=await epochs.take(), lease_s=config.lease_s, session_messages=config.session_messages
    )
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.aio)
    drained = asyncio.Event()
    tasks = [
        _background("steps", steps.turn()),
        _background("time", steps.keep_time()),
        _background("closer", closer.run()),
        _background("bus", _follow(config, fleet, outbox, drained)),
    ]
    try:
        target = await server.start([SERVICE])
        for name in ("", SERVICE):
            await server.set_serving(name, True)
        lifecycle.settle_gc()
        _log.info("ready", target=target, metrics=metrics_url)
        await stop.wait()
        await _drain(config, steps, closer)
    finally:
        drained.set()
        # First, so that no gateway comes back and hears that its worker is lost.
        await server.stop(0)
        await fleet.close()
        await _bounded(tasks[-1])
        await lifecycle.end(*tasks)
        outbox.close()
        metrics_server.shutdown()


def _desk(config: SchedulerConfig) -> Desk:
    limits = LaneLimits(
        pipeline_depth=config.pipeline_depth,
        chunk_tokens=config.chunk_tokens,
        step_target_s=config.step_target_s,
        max_queue_s=config.max_queue_s,
    )
    return Desk(
        Ownership(config.lease_s),
        Records(config.retention_s, config.retention_bytes),
        lambda model_version: Lane(model_version, limits),
        vacant_s=config.vacant_s,
    )


async def _follow(config: SchedulerConfig, fleet: Fleet, outbox: Outbox, drained: asyncio.Event) -> None:
    """Hear of workers and publish the outbox, once NATS is there."""

    def on_event(message: Message) -> None:
        fleet.on_change(events_pb2.WorkerChanged.FromString(message.data))

    async with contextlib.AsyncExitStack() as stack:
        bus = await Bus.connect(config.nats_url, "scheduler", config.nats_tls)
        stack.push_async_callback(bus.close)
        watch = _background("deployments", bus.last_per_subject(DEPLOYMENT_STREAM, WORKER_SUBJECT, on_event))
        stack.push_async_callback(lifecycle.end, watch)
        await outbox.drain(bus, drained)


async def _drain(config: SchedulerConfig, steps: StepLoop, closer: Closer) -> None:
    """Refuse new work and let what runs finish; what outlasts the grace goes back to its owners.

    They do with it as with what a lost scheduler ran: end it, or submit it again to the next one.
    """
    desk = steps.desk
    desk.draining = unavailable("DRAINING", "this scheduler is shutting down")
    _log.info("draining", grace_s=config.drain_grace_s)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(config.drain_grace_s):
            await steps.settled()
    steps.close_orphans()
    await _bounded(*(session.flushed() for session in steps.sessions()), closer.flushed())
    for session in steps.sessions():
        session.end()
    _log.info("drained")


async def _bounded(*work: Awaitable[Any]) -> None:
    await asyncio.wait([asyncio.ensure_future(item) for item in work], timeout=FLUSH_S)


def _background(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return lifecycle.guard(asyncio.create_task(work, name=name))
