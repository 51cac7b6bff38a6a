"""When to try an idempotent call again: few times, ever later, at random moments, within a budget."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often and how long after one another. Seconds."""

    attempts: int = 8
    first_s: float = 0.1
    longest_s: float = 2.0

    def delay_s(self, attempt: int, hint_s: float | None, chance: float) -> float:
        """How long to wait before retry number `attempt`, from 0; `chance` is uniform in [0, 1).

        Half of the growing step is left to chance, so that callers that failed together do not return
        together. A server's hint is the least.
        """
        step = min(self.longest_s, self.first_s * (1 << attempt))
        return max(hint_s or 0.0, step / 2) + chance * step / 2


class RetryBudget:
    """Bounds all retries of one client: what is down for all its calls sees few of them again.

    Every call adds `per_call` retries to what is left, up to `most`.
    """

    def __init__(self, *, start: float = 10.0, per_call: float = 2.0, most: float = 1000.0) -> None:
        self._left, self._per_call, self._most = start, per_call, most

    def earn(self) -> None:
        """A call was made that is no retry."""
        self._left = min(self._most, self._left + self._per_call)

    def spend(self) -> bool:
        """Whether one more retry is allowed, which it then takes."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Retries:
    """One call's retries: `next` says how long to wait, or None when it is to fail."""

    def __init__(
        self,
        budget: RetryBudget,
        backoff: Backoff = Backoff(),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._budget, self._backoff, self._chance = budget, backoff, chance
        self._attempt = 0
        budget.earn()

    def next(self, hint_s: float | None) -> float | None:
        """Take a retry: seconds until it."""
        if self._attempt >= self._backoff.attempts or not self._budget.spend():
            return None
        self._attempt += 1
        return self._backoff.delay_s(self._attempt - 1, hint_s, self._chance())

    def progress(self) -> None:
        """The call got somewhere: what fails from now on is a new failure."""
        self._attempt = 0
