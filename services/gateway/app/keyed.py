"""Generations by idempotency key: one for all requests that name it, whichever gateway they reach."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, Protocol

from kit import log
from kit.backoff import jittered
from kit.errors import Code, ServiceError
from services.gateway.core.idempotency import (
    Claim,
    End,
    Follow,
    Patience,
    Read,
    Run,
    Write,
    content_digest,
    entry_name,
)
from services.gateway.core.ids import MAX_REQUEST_ID, generation_not_found
from services.gateway.core.outcome import NEVER_OPENED, OWNERSHIP_LOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from services.gateway.app.generations import Arrival, Generations
    from services.gateway.app.ports import Tenant
    from services.gateway.app.reading import Reading
    from services.gateway.core.idempotency import Entry, Found, Step
    from services.gateway.core.ids import Key
    from services.gateway.core.spec import GenerationSpec

    Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]

_RELEASES, _RELEASE_EVERY_S = 60, 1.0
_log = log.get("keyed")


class KeyStore(Protocol):
    """The entries that all gateways share. Raises IDEMPOTENCY_UNAVAILABLE."""

    async def read(self, name: str) -> Found:
        """The entry as it is now."""

    async def write(self, name: str, entry: Entry | None, revision: int) -> int | None:
        """Store or delete the entry if it is at `revision`; the new revision, None when it was not."""


class KeyLostError(ServiceError):
    """Another generation has the key by now; nobody was told of this one."""

    def __init__(self) -> None:
        super().__init__(Code.UNAVAILABLE, "IDEMPOTENCY_UNAVAILABLE", "another request was first")


class Ticket:
    """The owner's leave to tell callers of a generation: `confirm` comes before `opened` is written."""

    def __init__(self, request_id: int, confirm: Callable[[], Awaitable[None]]) -> None:
        self.request_id = request_id
        self._confirm = confirm

    async def confirm(self) -> None:
        """Return once the key is held for good; raises `KeyLostError` when another generation has it."""
        await self._confirm()


class Keyed:
    """Starts a key's generation, or follows it; finds a generation by its key."""

    def __init__(self, generations: Generations, store: KeyStore, patience: Patience) -> None:
        self._generations = generations
        self._store = store
        self._patience = patience
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, tenant: Tenant, spec: GenerationSpec, arrival: Arrival, key: Key) -> Reading:
        """The one generation of the key, from its first token on; raises the refusal.

        What was begun is brought to an end though the caller leaves: no key is left half claimed.
        """
        attempt = _Attempt(
            tenant,
            spec,
            arrival,
            generations=self._generations,
            store=self._store,
            spawn=self._spawn,
            name=entry_name(tenant.tenant_id, key.text),
            claim=Claim(content_digest(spec), _new_request_id, self._patience),
        )
        task = self._spawn(attempt.run())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            attempt.gone = True
            task.add_done_callback(_leave)
            raise

    async def find(self, tenant: Tenant, key: Key) -> Entry:
        """What the key stands for; raises NOT_FOUND."""
        found = await self._store.read(entry_name(tenant.tenant_id, key.text))
        if found.entry is None:
            raise generation_not_found()
        return found.entry

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name="keyed")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Attempt:
    """One caller's way to the generation of its key: does what the claim asks for."""

    def __init__(
        self,
        tenant: Tenant,
        spec: GenerationSpec,
        arrival: Arrival,
        *,
        generations: Generations,
        store: KeyStore,
        spawn: Spawn,
        name: str,
        claim: Claim,
    ) -> None:
        self.gone = False
        self._tenant, self._spec, self._arrival = tenant, spec, arrival
        self._generations, self._store, self._spawn = generations, store, spawn
        self._name, self._claim = name, claim
        self._reading: Reading | None = None

    async def run(self) -> Reading:
        """Until the caller may be told, or refused."""
        step = self._claim.begin(time.time())
        try:
            while (step := await self._to_bucket(step)) is not End.CONFIRMED:
                match step:
                    case Follow(request_id):
                        step = await self._follow(request_id)
                    case Run(request_id):
                        step = await self._run(request_id)
        except BaseException:  # a cancelled caller leaves no reader behind either
            self._drop()
            raise
        assert self._reading is not None
        return self._reading

    async def _to_bucket(self, step: Step) -> Step:
        """Read and write until the claim asks for something else."""
        while isinstance(step, Read | Write):
            if isinstance(step, Read):
                await self._pause(step.pause_s)
                found = await self._store.read(self._name)
                step = self._claim.found(found.entry, found.revision, time.time())
            else:
                revision = await self._store.write(self._name, step.entry, step.revision)
                step = self._claim.beaten() if revision is None else self._claim.written(revision)
        return step

    async def _pause(self, seconds: float) -> None:
        if seconds:
            self._check_wanted()
            # Those who wait for the same claim do not ask in step.
            await asyncio.sleep(jittered(seconds))

    async def _follow(self, request_id: int) -> Step:
        self._drop()
        try:
            reading = await self._generations.attach(self._tenant, request_id, (), self._arrival)
        except ServiceError as error:
            if error.code is Code.NOT_FOUND or isinstance(error, KeyLostError):
                return self._claim.missing(time.time())
            raise
        if reading.error is not None and reading.error.reason == NEVER_OPENED:
            reading.leave()
            return self._claim.given_up(time.time())
        self._reading = reading
        return self._claim.attached()

    async def _run(self, request_id: int) -> Step:
        self._drop()
        ticket = Ticket(request_id, self._confirm)
        try:
            self._check_wanted()
            self._reading = await self._generations.start(self._tenant, self._spec, self._arrival, ticket)
        except KeyLostError:
            return Read()
        except ServiceError as error:
            # A generation that may go on keeps its key: whoever asks next follows it, or finds it void.
            if error.reason != OWNERSHIP_LOST:
                await self._release()
            raise
        return End.CONFIRMED

    async def _confirm(self) -> None:
        if await self._to_bucket(self._claim.admitted()) is End.LOST:
            raise KeyLostError

    async def _release(self) -> None:
        """Free the key of a generation that did not come to be, later if it cannot be freed now."""
        try:
            await self._to_bucket(self._claim.refused())
        except ServiceError:
            self._spawn(self._release_later())

    async def _release_later(self) -> None:
        for _ in range(_RELEASES):
            await asyncio.sleep(jittered(_RELEASE_EVERY_S))
            try:
                await self._to_bucket(self._claim.refused())
            except ServiceError:
                continue
            return
        _log.warning("a key was not freed")

    def _check_wanted(self) -> None:
        if self.gone:
            raise ServiceError(Code.CANCELLED, "CANCELLED", "the caller left")
        self._arrival.check_deadline(self._spec)

    def _drop(self) -> None:
        if self._reading is not None:
            self._reading.leave()
            self._reading = None


def _new_request_id() -> int:
    return secrets.randbelow(MAX_REQUEST_ID) + 1


def _leave(task: asyncio.Task[Reading]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().leave()
