"""One reader of one generation: all that a face needs to answer its caller."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kit.errors import ServiceError
    from services.gateway.app.ports import Lane, Outlet
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


class Turn:
    """Readings with news: those that can be are served in one go, after all of a step has been heard.

    A task woken for each costs as much as what it then writes.
    """

    def __init__(self) -> None:
        self._waiting: list[Reading] = []

    def wait(self, reading: Reading) -> None:
        """Serve a reading soon."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)
        self._waiting.append(reading)

    def _serve(self) -> None:
        waiting, self._waiting = self._waiting, []
        for reading in waiting:
            reading.serve()


class Reading:
    """A generation as one caller follows it. It must end in `leave`, however the caller goes."""

    def __init__(self, owner: Owner, reader: Reader, lane: Lane, ended: asyncio.Event, turn: Turn) -> None:
        self.owner, self.reader = owner, reader
        self._lane = lane
        self._ended = ended
        self._turn = turn
        self._news = asyncio.Event()
        self._outlet: Outlet | None = None
        self._parked = self._queued = False  # the task waits for news; the turn has us
        self._fault: Exception | None = None
        self._task: asyncio.Task[object] | None = None
        self._turn_away: Callable[[asyncio.Task[object]], object] = asyncio.Task.cancel
        reader.wake = self._wake

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
            if self._fault is not None:
                raise self._fault
            pieces = self.reader.take(time.monotonic())
            if pieces or self.reader.closed:
                return pieces
            self._parked = True
            try:
                await self._news.wait()
            finally:
                self._parked = False

    async def relay(self, outlet: Outlet) -> None:
        """Give `outlet` everything as it comes; returns once all is said.

        While the client keeps up, whoever brings the news writes it as well. If it does not, this task waits.
        """
        self._outlet = outlet
        while pieces := await self.take():
            await outlet.write(pieces)

    def serve(self) -> None:
        """Write what has come, or leave it to the task."""
        self._queued = False
        outlet = self._outlet
        try:
            if not (self._parked and outlet is not None and outlet.clear):
                self._news.set()
            elif pieces := self.reader.take(time.monotonic()):
                outlet.put(pieces)
        except Exception as fault:  # the task's to raise: one reader's fault ends one reader
            self._fault = fault
            self._news.set()

    async def ended(self) -> Closed:
        """The terminal record, once it is certain; to be told only if there is no `error`."""
        await self._ended.wait()
        return self.owner.closed

    def leave(self) -> None:
        """The caller has all it will take; again does nothing."""
        if not self.reader.left:
            self._lane.tell(self.owner.leave, self.reader)

    def _wake(self) -> None:
        if self._outlet is None or self.reader.closed:
            self._news.set()
        elif not self._queued:
            self._queued = True
            self._turn.wait(self)

    def turn_away(self) -> None:
        """Interrupt who reads, for it does not."""
        if self._task is not None:
            self._turn_away(self._task)
