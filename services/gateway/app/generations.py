"""The use cases that every face shares: start, follow, get, cancel, count, list, drain."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.gateway.app.live import LiveTable
from services.gateway.app.ports import State
from services.gateway.app.snapshot import Snapshot, snapshot_of
from services.gateway.core.ids import MAX_REQUEST_ID
from services.gateway.core.limits import effective_priority, prepare
from services.gateway.core.order import Order, Sampling
from services.gateway.core.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.app.live import Live
    from services.gateway.app.ports import (
        Lane,
        Meters,
        Records,
        Route,
        Routes,
        Tenant,
        Ticket,
        Tokenizers,
        UsageJournal,
    )
    from services.gateway.app.reading import Reading
    from services.gateway.core.spec import GenerationSpec, PromptSpec
    from services.gateway.core.tokenizing import ModelTokenizer

_SEED_BITS = 53  # exact in every JSON reader
_SWEEP_S = 1.0
# Well within the 30 s that the ledger grants beyond a lease.
_RENEW_S = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request came, and by when its caller wants it done, in monotonic seconds."""

    received: float
    deadline: float | None = None

    def deadline_of(self, spec: GenerationSpec) -> float | None:
        """The nearer of the caller's and the request's own."""
        if spec.deadline_ms is None:
            return self.deadline
        own = self.received + spec.deadline_ms / 1000
        return own if self.deadline is None else min(own, self.deadline)

    def check_deadline(self, spec: GenerationSpec) -> None:
        """Raise DEADLINE_EXCEEDED when it has passed."""
        deadline = self.deadline_of(spec)
        if deadline is not None and deadline <= time.monotonic():
            raise ServiceError(Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", "the deadline has passed")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator may change."""

    default_output_tokens: int
    reader_timeout_s: float
    stream_buffer_bytes: int
    resume_lease_s: float = 30.0


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
    """Every generation that this gateway owns or follows."""

    def __init__(self, ports: Ports, settings: Settings) -> None:
        self._ports = ports
        self._settings = settings
        self._table = LiveTable(ports.lane, ports.journal)
        self.draining = False

    @property
    def live(self) -> list[Live]:
        """Requests of this gateway that are submitted and not yet closed."""
        return self._table.owned()

    @property
    def catching_up(self) -> bool:
        """That a request is unknown may not be true for long."""
        return self._ports.lane.catching_up

    async def start(
        self, tenant: Tenant, spec: GenerationSpec, arrival: Arrival, ticket: Ticket | None = None
    ) -> Reading:
        """Take a generation to where its caller may see `accepted`; raises the refusal.

        The caller must end in `leave`, however it leaves. With a `ticket` the generation outlives it for the
        resume lease, as one does that is asked to `resume`.
        """
        self._check_open()
        self._ports.journal.check_room()
        order, tokenizer = await self._order(tenant, spec, arrival, ticket)
        # Tokenizing took time, in which a drain may have begun that would not wait for this one.
        self._check_open()
        meter = self._ports.meters.of(order.model_version, order.tenant_id)
        owner = self._ports.lane.submit(order, tokenizer.vocabulary, meter)
        return await self._table.join(self._table.add(owner, ticket), self._reader(()))

    async def attach(
        self, tenant: Tenant, request_id: int, from_index: Sequence[int], arrival: Arrival
    ) -> Reading:
        """Follow a tenant's generation, whichever gateway owns it, from a token on; raises the refusal.

        `from_index` is the first token wanted, of every choice or one for each. It must end in `leave` too.
        """
        self._check_open()
        live = self._table.find(request_id, tenant.tenant_id) or await self._follow(tenant, request_id)
        return await self._table.join(live, self._reader(from_index))

    async def count_tokens(self, spec: PromptSpec) -> tuple[list[int], str]:
        """The prompt's ids as a generation would have them, and the tokenizer's version."""
        tokenizer = await self._ports.tokenizers.load(self._route(spec))
        ids = await self._ports.tokenizers.run(tokenizer.encode, spec)
        return ids, tokenizer.tokenizer_version

    def models(self) -> list[Route]:
        """The models that can be called."""
        return self._ports.routes.list()

    async def cancel(self, tenant: Tenant, request_id: int) -> State:
        """End a generation of this tenant, whichever gateway owns it; the state found.

        Raises NO_CAPACITY when no scheduler hears of it now: the request may run on under another owner.
        """
        live = self._table.find(request_id, tenant.tenant_id)
        if live is None or not live.owner.owning:
            return await self._ports.records.cancel(request_id, tenant.tenant_id)
        state = State.RUNNING if live.started else State.QUEUED
        self._ports.lane.tell(live.owner.cancel)
        if not live.owner.over:
            # Our stream may break now, and the request be another's: who was answered was heard.
            await self._heard(request_id, tenant.tenant_id)
        return state

    async def _heard(self, request_id: int, tenant_id: str) -> None:
        try:
            await self._ports.records.cancel(request_id, tenant_id)
        except ServiceError as error:
            if error.code is not Code.NOT_FOUND:
                raise  # a scheduler that knows nothing of it is not asked to go on with it either

    async def get(self, tenant: Tenant, request_id: int) -> Snapshot:
        """A generation's state and output so far."""
        record = await self._ports.records.get(request_id, tenant.tenant_id)
        tokenizer = await self._tokenizer_of(record.model_version)
        own = self._table.recent(request_id)
        return await self._ports.tokenizers.run(snapshot_of, record, tokenizer.vocabulary, own)

    async def warm(self) -> None:
        """Load every route's tokenizer, so that no caller waits for one; failures are logged there."""
        loads = [self._ports.tokenizers.load(route) for route in self.models()]
        await asyncio.gather(*loads, return_exceptions=True)

    async def watch_readers(self) -> None:
        """Turn away, for ever, who reads nothing: what is left unread is nobody's memory."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._settings.reader_timeout_s / 4))
            self._table.check_readers()

    async def keep_open(self) -> None:
        """Say, for ever, what still runs: however long that takes, its ledger row is not unresolved."""
        while True:
            await asyncio.sleep(_RENEW_S)
            await self._ports.journal.renewed([live.owner.request_id for live in self.live])

    async def drain(self, grace_s: float) -> None:
        """Refuse new work, let running work finish within the grace, then end or hand over what is left."""
        self.draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._table.emptied()
        except TimeoutError:
            self._table.shut_down()
            await self._table.emptied()

    def _check_open(self) -> None:
        if self.draining:
            raise ServiceError(
                Code.UNAVAILABLE, "DRAINING", "this gateway is shutting down", retry_after_ms=1000
            )

    async def _order(
        self, tenant: Tenant, spec: GenerationSpec, arrival: Arrival, ticket: Ticket | None
    ) -> tuple[Order, ModelTokenizer]:
        arrival.check_deadline(spec)
        tokenizer = await self._ports.tokenizers.load(self._route(spec))
        prepared = await self._ports.tokenizers.run(
            prepare, spec, tokenizer, self._settings.default_output_tokens
        )
        arrival.check_deadline(spec)
        seed = secrets.randbits(_SEED_BITS) if spec.seed is None else spec.seed
        order = Order(
            request_id=secrets.randbelow(MAX_REQUEST_ID) + 1 if ticket is None else ticket.request_id,
            tenant_id=tenant.tenant_id,
            model_version=tokenizer.model_version,
            tokenizer_version=tokenizer.tokenizer_version,
            prompt_token_ids=prepared.prompt_token_ids,
            max_output_tokens=prepared.max_output_tokens,
            sampling=Sampling(spec.temperature, spec.top_p, spec.top_k, spec.min_p, seed, spec.logprobs),
            n=spec.n,
            stop_token_ids=prepared.stop_token_ids,
            stop=spec.stop,
            priority=effective_priority(tenant.priority, spec.priority),
            resume=spec.resume,
            resume_lease_s=self._settings.resume_lease_s if spec.resume or ticket is not None else 0.0,
            received=arrival.received,
            deadline=arrival.deadline_of(spec),
        )
        return order, tokenizer

    async def _follow(self, tenant: Tenant, request_id: int) -> Live:
        record = await self._ports.records.get(request_id, tenant.tenant_id)
        tokenizer = await self._tokenizer_of(record.model_version)
        self._check_open()
        if live := self._table.find(request_id, tenant.tenant_id):
            return live  # another reader was faster
        meter = self._ports.meters.of(record.model_version, tenant.tenant_id)
        owner = self._ports.lane.attach(request_id, tenant.tenant_id, tokenizer.vocabulary, meter)
        return self._table.add(owner)

    def _reader(self, from_index: Sequence[int]) -> Reader:
        settings = self._settings
        return Reader(from_index, timeout_s=settings.reader_timeout_s, max_bytes=settings.stream_buffer_bytes)

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
