"""One reader of one generation: all that a face needs to answer its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.gateway.core.order import Sampling

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from kit.errors import ServiceError
    from services.gateway.app.generation import Generation
    from services.gateway.core.choice import ChoiceAssembler, Piece
    from services.gateway.core.outcome import Closed
    from services.gateway.core.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What is fixed once a request is queued."""

    request_id: int
    model_version: str
    tokenizer_version: str
    runtime_revision: str
    sampling: Sampling
    vocabulary: Vocabulary


class Reading:
    """A generation as one caller follows it. It must end in `leave`, however the caller goes."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        order = generation.order
        spec = order.spec
        self.accepted = Acceptance(
            order.request_id,
            order.tokenizer.model_version,
            order.tokenizer.tokenizer_version,
            generation.runtime_revision,
            Sampling(spec.temperature, spec.top_p, spec.top_k, spec.min_p, order.seed, spec.logprobs),
            order.tokenizer.vocabulary,
        )

    @property
    def choices(self) -> Sequence[ChoiceAssembler]:
        """The whole output so far, of every choice from its first token on."""
        return self._generation.choices

    @property
    def error(self) -> ServiceError | None:
        """Once `ended` has returned: what to say instead of `done`, if the request failed."""
        return self._generation.error

    def on_turn_away(self, interrupt: Callable[[asyncio.Task[object]], object]) -> None:
        """How to interrupt the task that reads too slowly; by default it is cancelled."""
        self._generation.reader.turn_away = interrupt

    async def take(self) -> list[Piece]:
        """Everything not yet read, as soon as there is something; empty once all is said."""
        return await self._generation.reader.take()

    async def ended(self) -> Closed:
        """The terminal record, once it is certain; to be told only if there is no `error`."""
        return await self._generation.ended()

    def leave(self) -> None:
        """The caller has all it will take; again does nothing."""
        self._generation.abandon()
