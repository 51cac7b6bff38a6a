"""The use cases as every face calls them: generations named by the server's id or by the caller's key."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kit.errors import Code, ServiceError
from services.gateway.core.idempotency import expired
from services.gateway.core.ids import Key
from services.gateway.core.validation import start_of_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.gateway.app.generations import Arrival, Generations
    from services.gateway.app.keyed import Keyed
    from services.gateway.app.ports import Route, State, Tenant
    from services.gateway.app.reading import Reading
    from services.gateway.app.snapshot import Snapshot
    from services.gateway.core.ids import Reference
    from services.gateway.core.spec import GenerationSpec, PromptSpec

T = TypeVar("T")


class Front:
    """What a caller may ask for. A reading must end in `leave`, however its caller goes."""

    def __init__(self, generations: Generations, keyed: Keyed) -> None:
        self._generations = generations
        self._keyed = keyed

    async def start(
        self, tenant: Tenant, spec: GenerationSpec, arrival: Arrival, key: Key | None = None
    ) -> Reading:
        """A new generation, or the one that the key stands for; raises the refusal."""
        if key is None:
            return await self._generations.start(tenant, spec, arrival)
        return await self._keyed.start(tenant, spec, arrival, key)

    async def attach(
        self, tenant: Tenant, reference: Reference, start: tuple[int, ...], arrival: Arrival, field: str
    ) -> Reading:
        """Follow a generation from these tokens on, given in `field`; raises NOT_FOUND or RESULT_EXPIRED."""
        reading = await self._named(
            tenant, reference, lambda named: self._generations.attach(tenant, named, start, arrival)
        )
        try:
            start_of_each(start, len(reading.choices), field)
        except ServiceError:
            reading.leave()
            raise
        return reading

    async def get(self, tenant: Tenant, reference: Reference) -> tuple[int, Snapshot]:
        """A generation's id, and its state and output so far."""

        async def get(request_id: int) -> tuple[int, Snapshot]:
            return request_id, await self._generations.get(tenant, request_id)

        return await self._named(tenant, reference, get)

    async def cancel(self, tenant: Tenant, reference: Reference) -> tuple[int, State]:
        """End a generation, whichever gateway owns it; its id and the state found."""

        async def cancel(request_id: int) -> tuple[int, State]:
            return request_id, await self._generations.cancel(tenant, request_id)

        return await self._named(tenant, reference, cancel)

    async def count_tokens(self, spec: PromptSpec) -> tuple[list[int], str]:
        """The prompt's ids as a generation would have them, and the tokenizer's version."""
        return await self._generations.count_tokens(spec)

    def models(self) -> list[Route]:
        """The models that can be called."""
        return self._generations.models()

    async def _named(self, tenant: Tenant, reference: Reference, use: Callable[[int], Awaitable[T]]) -> T:
        if not isinstance(reference, Key):
            return await self._known(reference, use)
        entry = await self._keyed.find(tenant, reference)
        try:
            return await self._known(entry.request_id, use)
        except ServiceError as error:
            if error.code is Code.NOT_FOUND and entry.accepted:
                raise expired() from None
            raise

    async def _known(self, request_id: int, use: Callable[[int], Awaitable[T]]) -> T:
        try:
            return await use(request_id)
        except ServiceError as error:
            if error.code is Code.NOT_FOUND and self._generations.catching_up:
                message = "the scheduler has just started and may hear of the request soon"
                raise ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", message, retry_after_ms=1000) from None
            raise
