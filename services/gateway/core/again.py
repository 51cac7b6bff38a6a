"""When to ask a scheduler again that has just started and refuses for now."""

from __future__ import annotations

FIRST_S, LONGEST_S = 0.1, 1.0
# A scheduler that has just started knows neither workers nor what others have yet to submit again.
_NOT_YET = frozenset({"NO_CAPACITY", "NOT_FOUND"})
_SPREAD = 997


class Again:
    """Requests that may be asked for again until their time is up; times are monotonic seconds.

    Waits double, and differ from one request to the next: what was refused together does not return together.
    """

    def __init__(self) -> None:
        self._waits: dict[int, tuple[float, float]] = {}

    def allow(self, request_id: int, until: float) -> None:
        """Take refusals for now as such until then."""
        self._waits[request_id] = until, FIRST_S

    def settled(self, request_id: int) -> None:
        """The request has another answer, or none is wanted any more."""
        self._waits.pop(request_id, None)

    def after(self, request_id: int, reason: str, now: float) -> float | None:
        """When to ask again after this refusal; None when it counts."""
        until, wait_s = self._waits.get(request_id, (now, 0.0))
        if reason not in _NOT_YET or now >= until:
            return None
        self._waits[request_id] = until, min(2 * wait_s, LONGEST_S)
        return now + wait_s * (0.5 + 0.5 * (request_id % _SPREAD) / _SPREAD)
