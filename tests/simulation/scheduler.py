"""The scheduler: production servicer, step loop, fleet, closer and outbox on a simulated host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import lifecycle
from kit.journal import Journal
from kit.outbox import Outbox
from services.scheduler.adapters.closer import Closer
from services.scheduler.adapters.fleet import Fleet
from services.scheduler.adapters.step_loop import StepLoop
from services.scheduler.core.desk import Desk
from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.ownership import Ownership
from services.scheduler.core.records import Records
from services.scheduler.servicer import SchedulerServicer
from tests.simulation.disk import SimulatedDisk
from tests.simulation.install import Nothing
from tests.simulation.nats import Nats, SimulatedBus, Stored
from tests.simulation.rpc import Server
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from services.scheduler.core.messages import Effect, Request, StepPlan
    from tests.simulation.auditor import Auditor
    from tests.simulation.network import Network

LEASE_S = 3.0
STEP_TIMEOUT_S = 2.0
VACANT_S = 12.0
RETENTION_S = 60.0
COMPACT_BYTES = 1500
WORKER_SUBJECT = "deployment.v1.worker.*"


class Epochs:
    """The durable counter."""

    def __init__(self) -> None:
        self._last = 0

    async def take(self, above: int = 0) -> int:
        self._last = max(self._last, above) + 1
        return self._last


class WatchedLane(Lane):
    """A lane whose requests and effects the auditor sees too."""

    def __init__(self, model_version: str, limits: LaneLimits, auditor: Auditor) -> None:
        super().__init__(model_version, limits)
        self._auditor = auditor

    def submit(self, request: Request, now: float) -> None:
        super().submit(request, now)
        self._auditor.submitted(request)

    def plan(self, replica_id: str, now: float) -> StepPlan | None:
        plan = super().plan(replica_id, now)
        if plan is not None:
            self._auditor.planned(self._replicas[replica_id], plan)
        return plan

    def effects(self) -> list[Effect]:
        effects = super().effects()
        for effect in effects:
            self._auditor.effect(effect)
        return effects


class WatchedOwnership(Ownership):
    """Ownership whose grants the auditor sees too."""

    def __init__(self, lease_s: float, auditor: Auditor) -> None:
        super().__init__(lease_s)
        self._auditor = auditor

    def _give(self, request_id: int, holding: Any, stream: str, above: int) -> int:
        epoch = super()._give(request_id, holding, stream, above)
        self._auditor.granted(request_id, epoch, stream)
        return epoch


class Scheduler(Server):
    """One process; its epochs and its outbox outlive it."""

    def __init__(self, network: Network, nats: Nats, auditor: Auditor) -> None:
        super().__init__(network, "scheduler")
        self._nats, self._auditor = nats, auditor
        self.disk = SimulatedDisk(self.world.rng)
        self._epochs = Epochs()
        self.limits = LaneLimits(pipeline_depth=self.world.rng.choice((1, 1, 2)), chunk_tokens=8)
        self.desk: Desk | None = None
        self.outbox: Outbox | None = None

    def on_start(self) -> None:
        # No bytes are durable before the journal is open.
        journal = Journal(Path("scheduler/outbox"), disk=self.disk, compact_bytes=COMPACT_BYTES)
        self.outbox = outbox = Outbox(Path("scheduler/outbox"), journal=journal)
        outbox.open()
        self.desk = desk = Desk(
            WatchedOwnership(LEASE_S, self._auditor),
            Records(RETENTION_S, 1 << 20),
            lambda model_version: WatchedLane(model_version, self.limits, self._auditor),
            vacant_s=VACANT_S,
        )
        self._auditor.scheduler_starts()
        self.loop.create_task(self._serve(desk, outbox))

    def settled(self) -> None:
        if self.desk is not None:
            self._auditor.check(self.desk)

    async def _serve(self, desk: Desk, outbox: Outbox) -> None:
        metrics: Any = Nothing()
        closer = Closer(outbox, desk)
        steps = StepLoop(
            desk, metrics, closer, depth=self.limits.pipeline_depth, probe_s=5.0, clock=self.clock
        )
        epochs: Any = self._epochs
        fleet = Fleet(steps, epochs, step_timeout_s=STEP_TIMEOUT_S)
        epoch = await epochs.take()
        servicer: Any = SchedulerServicer(steps, epoch=epoch, lease_s=LEASE_S, session_messages=256)
        bus = SimulatedBus(self._nats, self)
        self._keep("steps", steps.turn())
        self._keep("time", steps.keep_time())
        self._keep("closer", closer.run())
        self._keep("outbox", outbox.drain(bus, asyncio.Event()))
        self._nats.watch(self, lambda stored: self._changed(fleet, stored))
        self.unaries = {
            "GetGeneration": servicer.GetGeneration,
            "CancelGeneration": servicer.CancelGeneration,
        }
        self.streams = {"Lane": self.serve_stream(lambda context: servicer.Lane(None, context))}

    def on_crash(self) -> None:
        super().on_crash()
        self.disk.crash(host=self.world.chance(0.5))
        self.streams, self.unaries = {}, {}

    def _keep(self, name: str, work: Any) -> None:
        lifecycle.guard(self.loop.create_task(work, name=name))

    def _changed(self, fleet: Fleet, stored: Stored) -> None:
        if stored.subject.startswith(WORKER_SUBJECT.rstrip("*")):
            fleet.on_change(events_pb2.WorkerChanged.FromString(stored.data))
