"""The step log: what to do with a plan, by its (epoch, step) alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from services.worker.core.errors import FencedError, GapError

R = TypeVar("R")
KEPT_RESULTS = 2


@dataclass(frozen=True, slots=True)
class Execute:
    """Run the plan; with `reset`, forget every sequence first, since a new attachment begins."""

    reset: bool


@dataclass(frozen=True, slots=True)
class Replay(Generic[R]):
    """The plan already ran: give this result again."""

    result: R


class StepLog(Generic[R]):
    """Order and idempotency of steps. Used by one thread, in the order in which plans arrived."""

    def __init__(self) -> None:
        self.epoch = 0
        self.step = 0
        self._results: dict[int, R] = {}

    def admit(self, epoch: int, step: int) -> Execute | Replay[R]:
        """Say what to do with a plan, or raise `FencedError` or `GapError`; changes nothing."""
        if epoch < self.epoch:
            raise FencedError(epoch, self.epoch)
        if epoch == self.epoch and step in self._results:
            return Replay(self._results[step])
        expected = self.step + 1 if epoch == self.epoch else 1
        if step != expected:
            raise GapError(step, expected)
        return Execute(reset=epoch > self.epoch)

    def record(self, epoch: int, step: int, result: R) -> None:
        """Keep the result of a plan that ran, and forget all but the last two of its epoch."""
        if epoch != self.epoch:
            self._results.clear()
        self.epoch, self.step = epoch, step
        self._results[step] = result
        self._results.pop(step - KEPT_RESULTS, None)
