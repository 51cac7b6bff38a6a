"""A gateway: production use cases, lane and outbox on a simulated host, behind a face for users."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TYPE_CHECKING

from kit import lifecycle
from kit.journal import Journal
from kit.outbox import Outbox
from services.gateway.adapters.lane import LaneClient
from services.gateway.adapters.records import SchedulerRecords
from services.gateway.adapters.usage_journal import OutboxJournal
from services.gateway.app.generations import Arrival, Generations, Ports, Settings
from services.gateway.app.ports import Route, Tenant
from services.gateway.core.limits import Priority
from tests.simulation import tokens
from tests.simulation.disk import SimulatedDisk
from tests.simulation.install import Nothing, SchedulerStub
from tests.simulation.nats import Nats, SimulatedBus
from tests.simulation.rpc import Context, Server
from tests.simulation.scheduler import COMPACT_BYTES

if TYPE_CHECKING:
    from services.gateway.core.spec import GenerationSpec
    from collections.abc import Callable

OUTBOX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """A client asks for a generation."""

    tenant_id: str
    spec: GenerationSpec
    deadline_s: float | None


class Gateway(Server):
    """One process; its outbox outlives it."""

    def __init__(self, nats: Nats, name: str, scheduler: Server) -> None:
        super().__init__(nats.network, name)
        self._nats, self._scheduler = nats, scheduler
        self.disk = SimulatedDisk(self.world.rng)
        self.generations: Generations | None = None
        self.outbox: Outbox | None = None

    def on_start(self) -> None:
        path = Path(self.name) / "outbox"
        journal = Journal(path, disk=self.disk, compact_bytes=COMPACT_BYTES)
        self.outbox = outbox = Outbox(path, max_bytes=OUTBOX_BYTES, journal=journal)
        outbox.open()
        stub: Any = SchedulerStub(self, self._scheduler)
        lane = LaneClient(lambda: stub.Lane(wait_for_ready=True), self.name, resubmit_s=3.0, clock=self.clock)
        ports = Ports(
            routes=_Routes(),
            tokenizers=_Tokenizers(),
            lane=lane,
            records=SchedulerRecords(stub),
            journal=OutboxJournal(outbox, OUTBOX_BYTES),
            meters=Nothing(),  # type: ignore[arg-type]
        )
        settings = Settings(default_output_tokens=16, reader_timeout_s=4.0, stream_buffer_bytes=1 << 16)
        self.generations = Generations(ports, settings)
        self._keep("lane", lane.run())
        self._keep("readers", self.generations.watch_readers())
        self._keep("renewals", self.generations.keep_open())
        self._keep("outbox", outbox.drain(SimulatedBus(self._nats, self), asyncio.Event()))
        self.streams = {"Generate": self.serve_stream(self._generate)}

    def on_crash(self) -> None:
        super().on_crash()
        self.disk.crash(host=self.world.chance(0.5))
        self.streams = {}

    async def _generate(self, context: Context) -> None:
        request = await context.read()
        assert isinstance(request, Start)
        now = self.clock()
        deadline = None if request.deadline_s is None else now + request.deadline_s
        assert self.generations is not None
        tenant = Tenant(request.tenant_id, Priority.STANDARD)
        reading = await self.generations.start(tenant, request.spec, Arrival(now, deadline))
        try:
            await context.write(reading.accepted)
            while pieces := await reading.take():
                for piece in pieces:
                    await context.write(piece)
            closed = await reading.ended()
            if error := reading.error:
                raise error
            await context.write(closed)
        finally:
            reading.leave()

    def _keep(self, name: str, work: Any) -> None:
        lifecycle.guard(self.loop.create_task(work, name=name))


class _Routes:
    """One model, always served."""

    def find(self, model: str, field: str = "model") -> Route:
        return Route(tokens.NAME, tokens.MODEL_VERSION, "", tokens.CONTEXT, "toy")

    def list(self) -> list[Route]:
        return [self.find(tokens.NAME)]


class _Tokenizers:
    """Its tokenizer, at hand."""

    def __init__(self) -> None:
        self._tokenizer = tokens.tokenizer()

    async def load(self, route: Route) -> Any:
        return self._tokenizer

    def loaded(self, model_version: str) -> Any:
        return self._tokenizer

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)
