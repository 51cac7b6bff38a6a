"""One reader of one generation: all that a face needs to answer its caller."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kit.errors import ServiceError
    from services.gateway.app.ports import Lane
    from services.gateway.core.choice import ChoiceAssembler, Piece
    from services.gateway.core.order import Sampling
    from services.gateway.core.outcome import Closed
    from services.gateway.core.owner import Owner
    from services.gateway.core.reader import Reader
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

    def __init__(self, owner: Owner, reader: Reader, lane: Lane, ended: asyncio.Event) -> None:
        self.owner, self.reader = owner, reader
        self._lane = lane
        self._ended = ended
        self._news = asyncio.Event()
        self._task: asyncio.Task[object] | None = None
        self._turn_away: Callable[[asyncio.Task[object]], object] = asyncio.Task.cancel
        reader.wake = self._news.set

    @property
    def accepted(self) -> Acceptance:
        """What is fixed."""
        order = self.owner.order
        return Acceptance(
            order.request_id,
            order.model_version,
            order.tokenizer_version,
            self.owner.runtime_revision,
            order.sampling,
            self.owner.vocabulary,
        )

    @property
    def choices(self) -> Sequence[ChoiceAssembler]:
        """The whole output so far, of every choice from its first token on."""
        return self.owner.choices

    @property
    def error(self) -> ServiceError | None:
        """Once `ended` has returned: what to say instead of `done`, if the request failed."""
        return self.owner.error

    def on_turn_away(self, interrupt: Callable[[asyncio.Task[object]], object]) -> None:
        """How to interrupt the task that reads too slowly; by default it is cancelled."""
        self._turn_away = interrupt

    async def take(self) -> list[Piece]:
        """Everything not yet read, as soon as there is something; empty once all is said."""
        self._task = asyncio.current_task()
        while True:
            self._news.clear()
            pieces = self.reader.take(time.monotonic())
            if pieces or self.reader.closed:
                return pieces
            await self._news.wait()

    async def ended(self) -> Closed:
        """The terminal record, once it is certain; to be told only if there is no `error`."""
        await self._ended.wait()
        return self.owner.closed

    def leave(self) -> None:
        """The caller has all it will take; again does nothing."""
        if not self.reader.left:
            self._lane.tell(self.owner.leave, self.reader)

    def turn_away(self) -> None:
        """Interrupt who reads, for it does not."""
        if self._task is not None:
            self._turn_away(self._task)
