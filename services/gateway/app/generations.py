"""The use cases that every face shares: start, follow, get, cancel, count, list, drain."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import lifecycle, log
from kit.errors import Code, ServiceError
from services.gateway.app.generation import Generation
from services.gateway.app.ports import Order, State
from services.gateway.app.reader import Reader
from services.gateway.app.reading import Reading
from services.gateway.app.snapshot import OwnVerdict, Snapshot, snapshot_of
from services.gateway.core.choice import ChoiceAssembler
from services.gateway.core.ids import MAX_REQUEST_ID, format_id
from services.gateway.core.limits import effective_priority, prepare

if TYPE_CHECKING:
    from services.gateway.app.ports import (
        Lane,
        Meters,
        Records,
        Route,
        Routes,
        Tenant,
        Tokenizers,
        UsageJournal,
    )
    from services.gateway.core.outcome import Closed
    from services.gateway.core.spec import GenerationSpec, PromptSpec
    from services.gateway.core.tokenizing import ModelTokenizer

_log = log.get("generations")
_SEED_BITS = 53  # exact in every JSON reader
_RECENT = 4096
_SWEEP_S = 1.0
# Well within the 30 s that the ledger grants beyond a lease.
_RENEW_S = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request came, and by when its caller wants it done, in monotonic seconds."""

    received: float
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator may change."""

    default_output_tokens: int
    reader_timeout_s: float
    stream_buffer_bytes: int


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside that the use cases need."""

    routes: Routes
    tokenizers: Tokenizers
    lane: Lane
    records: Records
    journal: UsageJournal
    meters: Meters


class Generations:
    """Every generation this gateway owns."""

    def __init__(self, ports: Ports, settings: Settings) -> None:
        self._ports = ports
        self._settings = settings
        self._live: dict[int, Generation] = {}
        self._read: set[Generation] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recent: OrderedDict[int, OwnVerdict] = OrderedDict()
        self.draining = False

    @property
    def live(self) -> list[Generation]:
        """Requests submitted and not yet closed."""
        return list(self._live.values())

    async def start(self, tenant: Tenant, spec: GenerationSpec, arrival: Arrival) -> Reading:
        """Take a generation to where its caller may see `accepted`; raises the refusal.

        The caller must end in `leave` when it leaves, however it leaves.
        """
        self._check_open()
        order = await self._order(tenant, spec, arrival)
        # Tokenizing took time, in which a drain may have begun that would not wait for this one.
        self._check_open()
        generation = self._generation(order)
        self._ports.lane.submit(generation)
        self._live[order.request_id] = generation
        task = asyncio.create_task(generation.run(), name="generation")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, generation))
        lifecycle.guard(task)
        try:
            await generation.opened()
        except asyncio.CancelledError:
            generation.abandon()
            raise
        self._read.add(generation)
        return Reading(generation)

    async def count_tokens(self, spec: PromptSpec) -> tuple[list[int], str]:
        """The prompt's ids as a generation would have them, and the tokenizer's version."""
        tokenizer = await self._ports.tokenizers.load(self._route(spec))
        ids = await self._ports.tokenizers.run(tokenizer.encode, spec)
        return ids, tokenizer.tokenizer_version

    def models(self) -> list[Route]:
        """The models that can be called."""
        return self._ports.routes.list()

    async def cancel(self, tenant: Tenant, request_id: int) -> State:
        """End a generation of this tenant, whichever gateway owns it; the state found."""
        generation = self._live.get(request_id)
        if generation is None or generation.order.tenant.tenant_id != tenant.tenant_id:
            return await self._ports.records.cancel(request_id, tenant.tenant_id)
        state = State.RUNNING if generation.started else State.QUEUED
        generation.cancel()
        return state

    async def get(self, tenant: Tenant, request_id: int) -> Snapshot:
        """A generation's state and output so far."""
        record = await self._ports.records.get(request_id, tenant.tenant_id)
        tokenizer = await self._tokenizer_of(record.model_version)
        own = self._recent.get(request_id)
        return await self._ports.tokenizers.run(snapshot_of, record, tokenizer.vocabulary, own)

    async def warm(self) -> None:
        """Load every route's tokenizer, so that no caller waits for one; failures are logged there."""
        loads = [self._ports.tokenizers.load(route) for route in self.models()]
        await asyncio.gather(*loads, return_exceptions=True)

    async def watch_readers(self) -> None:
        """Cancel, for ever, what its reader does not read; hang up on one that leaves the end unread."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._settings.reader_timeout_s / 4))
            now = time.monotonic()
            self._read = {generation for generation in self._read if not generation.reader.left}
            for generation in self._read:
                generation.check_reader(now)

    async def keep_open(self) -> None:
        """Say, for ever, what still runs: however long that takes, its ledger row is not unresolved."""
        while True:
            await asyncio.sleep(_RENEW_S)
            await self._ports.journal.renewed(list(self._live))

    async def drain(self, grace_s: float) -> None:
        """Refuse new work, let running work finish within the grace, then end what is left."""
        self.draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for generation in self.live:
            generation.shut_down()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _check_open(self) -> None:
        if self.draining:
            raise ServiceError(
                Code.UNAVAILABLE, "DRAINING", "this gateway is shutting down", retry_after_ms=1000
            )
        self._ports.journal.check_room()

    async def _order(self, tenant: Tenant, spec: GenerationSpec, arrival: Arrival) -> Order:
        deadline = arrival.deadline
        if spec.deadline_ms is not None:
            own = arrival.received + spec.deadline_ms / 1000
            deadline = own if deadline is None else min(own, deadline)
        _check_deadline(deadline)
        tokenizer = await self._ports.tokenizers.load(self._route(spec))
        prepared = await self._ports.tokenizers.run(
            prepare, spec, tokenizer, self._settings.default_output_tokens
        )
        _check_deadline(deadline)
        return Order(
            request_id=secrets.randbelow(MAX_REQUEST_ID) + 1,
            tenant=tenant,
            spec=spec,
            prepared=prepared,
            tokenizer=tokenizer,
            seed=secrets.randbits(_SEED_BITS) if spec.seed is None else spec.seed,
            priority=effective_priority(tenant.priority, spec.priority),
            received=arrival.received,
            deadline=deadline,
        )

    def _generation(self, order: Order) -> Generation:
        vocabulary, spec = order.tokenizer.vocabulary, order.spec
        choices = [ChoiceAssembler(vocabulary, spec.stop, choice=i) for i in range(spec.n)]
        settings = self._settings
        reader = Reader(choices, timeout_s=settings.reader_timeout_s, max_bytes=settings.stream_buffer_bytes)
        meter = self._ports.meters.of(order.tokenizer.model_version, order.tenant.tenant_id)
        ports = self._ports
        return Generation(order, choices, reader, lane=ports.lane, journal=ports.journal, meter=meter)

    async def _tokenizer_of(self, model_version: str) -> ModelTokenizer:
        # The version may have lost its route since the request ran.
        if loaded := self._ports.tokenizers.loaded(model_version):
            return loaded
        try:
            route = self._ports.routes.find(model_version)
        except ServiceError:
            message = "the model version that made this result is no longer deployed"
            raise ServiceError(Code.FAILED_PRECONDITION, "RESULT_EXPIRED", message) from None
        return await self._ports.tokenizers.load(route)

    def _route(self, spec: PromptSpec) -> Route:
        return self._ports.routes.find(spec.model, spec.named("model"))

    def _ended(self, task: asyncio.Task[None], generation: Generation) -> None:
        self._tasks.discard(task)
        self._live.pop(generation.request_id, None)
        if generation.closed is not None:
            _log.info("closed", **_summary(generation, generation.closed))
        if generation.closed is not None and generation.owned:
            kept = [choice.output_tokens for choice in generation.choices]
            self._recent[generation.request_id] = OwnVerdict(kept, generation.closed)
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)


def _summary(generation: Generation, closed: Closed) -> dict[str, object]:
    return {
        "request": format_id(generation.request_id),
        "tenant": generation.order.tenant.tenant_id,
        "model_version": generation.model_version,
        "reason": closed.finish_reason.label,
        "input_tokens": closed.input_tokens,
        "output_tokens": closed.output_tokens,
        "ttft_ms": closed.ttft_ms,
        "total_ms": closed.total_ms,
    }


def _check_deadline(deadline: float | None) -> None:
    if deadline is not None and deadline <= time.monotonic():
        raise ServiceError(Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", "the deadline has passed")
