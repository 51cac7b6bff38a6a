"""One attached worker seen from the step loop: plans out, and what is known of its health."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.scheduler.core.messages import Worker
    from tokenloom.api.worker.v1 import worker_pb2


SUSPECT_S = 10.0  # patience with a step of a worker whose heartbeats stopped as well


class Sent(NamedTuple):
    """When a plan left, how long it took to make, in seconds, and its rows."""

    at: float
    plan_s: float
    rows: int


class Replica:
    """The plans under way to one worker. `lost` is set when the worker counts as lost."""

    def __init__(self, worker: Worker, step_timeout_s: float) -> None:
        self.worker = worker
        self.draining = False
        self.suspected = False
        self._finished = False
        self.lost = asyncio.Event()
        self._step_timeout_s = step_timeout_s
        self._outgoing: asyncio.Queue[worker_pb2.RunRequest | None] = asyncio.Queue()
        self._sent: dict[int, Sent] = {}
        self._received_at = float("-inf")

    @property
    def replica_id(self) -> str:
        """The worker's id."""
        return self.worker.replica_id

    @property
    def in_flight(self) -> int:
        """Plans whose result is not here yet."""
        return len(self._sent)

    def send(self, message: worker_pb2.RunRequest, sent: Sent) -> None:
        """Queue a plan for the stream; the pipeline's depth bounds the queue."""
        self._sent[message.plan.step] = sent
        self._outgoing.put_nowait(message)

    def received(self, result: worker_pb2.StepResult, now: float) -> Sent | None:
        """Match a result to its plan; None for one that was not asked for."""
        sent = self._sent.pop(result.step, None) if result.epoch == self.worker.epoch else None
        if sent is not None:
            self._received_at = now
        return sent

    def finish(self) -> None:
        """End the stream after the plans that are queued."""
        if not self._finished:
            self._finished = True
            self._outgoing.put_nowait(None)

    def overdue(self, now: float) -> bool:
        """Whether the oldest plan has had more than a step's time since its turn came."""
        oldest = next(iter(self._sent.values()), None)
        patience_s = min(self._step_timeout_s, SUSPECT_S) if self.suspected else self._step_timeout_s
        return oldest is not None and now - max(oldest.at, self._received_at) > patience_s

    async def plans(self) -> AsyncIterator[worker_pb2.RunRequest]:
        """Give the stream its plans."""
        while (message := await self._outgoing.get()) is not None:
            yield message
