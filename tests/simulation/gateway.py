"""A gateway: production use cases, lane and outbox on a simulated host, behind a face for users."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from kit import lifecycle
from kit.journal import Journal
from kit.outbox import Outbox
from services.gateway.adapters.idempotency import KeyStore
from services.gateway.adapters.lane import LaneClient
from services.gateway.adapters.records import SchedulerRecords
from services.gateway.adapters.usage_journal import OutboxJournal
from services.gateway.app.front import Front
from services.gateway.app.generations import Arrival, Generations, Ports, Settings
from services.gateway.app.keyed import Keyed
from services.gateway.app.ports import Route, Tenant
from services.gateway.core.effects import NoMeter
from services.gateway.core.idempotency import Patience
from services.gateway.core.ids import Key
from services.gateway.core.limits import Priority
from tests.simulation import tokens
from tests.simulation.disk import SimulatedDisk
from tests.simulation.install import SchedulerStub
from tests.simulation.messages import Attach, Delete, Start
from tests.simulation.nats import Nats, SimulatedBus
from tests.simulation.rpc import Context, Server
from tests.simulation.scheduler import COMPACT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable


OUTBOX_BYTES = 1 << 20
RESUBMIT_S = 3.0
READER_TIMEOUT_S = 4.0
RESUME_LEASE_S = 5.0
CLAIM_S = 4.0

P = ParamSpec("P")
T = TypeVar("T")


class Gateway(Server):
    """One process; its outbox outlives it."""

    def __init__(self, nats: Nats, name: str, scheduler: Server) -> None:
        super().__init__(nats.network, name)
        self._nats, self._scheduler = nats, scheduler
        self.disk = SimulatedDisk(self.world.rng)
        self.outbox: Outbox | None = None
        self._lane: LaneClient | None = None
        self._generations: Generations | None = None
        self._front: Front | None = None

    @property
    def live(self) -> list[int]:
        """Requests that it owns or follows."""
        return list(self._lane._book.owners) if self._lane is not None and self.up else []

    def prompt_of(self, request_id: int) -> tuple[int, ...] | None:
        """The prompt of a request that is submitted here."""
        owner = self._lane._book.owners.get(request_id) if self._lane is not None and self.up else None
        return tuple(owner.order.prompt_token_ids) if owner is not None and owner.owning else None

    @property
    def remains(self) -> list[object]:
        """What is left when nobody asks for anything; there should be nothing."""
        assert self._generations is not None
        table = self._generations._table
        return [*self.live, *table._live, *table._readings]

    def on_start(self) -> None:
        path = Path(self.name) / "outbox"
        journal = Journal(path, disk=self.disk, compact_bytes=COMPACT_BYTES)
        self.outbox = outbox = Outbox(path, max_bytes=OUTBOX_BYTES, journal=journal)
        outbox.open()
        bus = SimulatedBus(self._nats, self)
        stub: Any = SchedulerStub(self, self._scheduler)
        self._lane = lane = LaneClient(
            lambda: stub.Lane(wait_for_ready=True), self.name, resubmit_s=RESUBMIT_S, clock=self.clock
        )
        ports = Ports(
            routes=_Routes(),
            tokenizers=_Tokenizers(),
            lane=lane,
            records=SchedulerRecords(stub),
            journal=OutboxJournal(outbox, OUTBOX_BYTES),
            meters=_Meters(),
        )
        settings = Settings(
            default_output_tokens=16,
            reader_timeout_s=READER_TIMEOUT_S,
            stream_buffer_bytes=1 << 16,
            resume_lease_s=RESUME_LEASE_S,
        )
        self._generations = generations = Generations(ports, settings)
        self._front = Front(generations, Keyed(generations, KeyStore(bus), Patience(CLAIM_S, RESUBMIT_S)))
        self._keep("lane", lane.run())
        self._keep("readers", generations.watch_readers())
        self._keep("renewals", generations.keep_open())
        self._keep("outbox", outbox.drain(bus, asyncio.Event()))
        self.streams = {"Generate": self.serve_stream(self._generate)}

    def on_crash(self) -> None:
        super().on_crash()
        self.disk.crash(host=self.world.chance(0.5))
        self.streams = {}

    async def _generate(self, context: Context) -> None:
        request: Any = await context.read()
        assert self._front is not None
        tenant = Tenant(request.tenant_id, Priority.STANDARD)
        now = self.clock()
        match request:
            case Start():
                deadline = None if request.deadline_s is None else now + request.deadline_s
                key = None if request.key is None else Key(request.key)
                reading = await self._front.start(tenant, request.spec, Arrival(now, deadline), key)
            case Attach():
                reference = request.request_id if request.key is None else Key(request.key)
                reading = await self._front.attach(tenant, reference, request.start, Arrival(now), "from")
            case Delete():
                await context.write(await self._front.cancel(tenant, request.request_id))
                return
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


class _Meters:
    """Measures nothing."""

    def of(self, model_version: str, tenant_id: str) -> NoMeter:
        return NoMeter()


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

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return work(*args, **kwargs)
