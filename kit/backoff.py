"""How long to wait before the next attempt at something that fails."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double up to a bound; only an attempt that lasted `stable_s` makes them short again.

    The bound is the budget of whatever flaps: with jitter, one attempt in `last_s / 2` seconds at most.
    """

    def __init__(self, first_s: float, last_s: float, stable_s: float) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._stable_s = stable_s
        self._delay_s = 0.0

    def after(self, lasted_s: float) -> float:
        """Return the delay after an attempt that lasted so long, before jitter."""
        if lasted_s >= self._stable_s:
            self._delay_s = 0.0
        self._delay_s = min(max(self._first_s, 2 * self._delay_s), self._last_s)
        return self._delay_s

    def reset(self) -> None:
        """Make the next delay a short one: an attempt had its success."""
        self._delay_s = 0.0


def jittered(delay_s: float) -> float:
    """Return half of a delay to all of it, by chance: who failed together does not return together."""
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311
