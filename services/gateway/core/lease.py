"""The owner's lease, as its own clock tells it."""

from __future__ import annotations

from collections import deque

_OWN_SHARE = 0.8  # the owner's clock runs out before the scheduler's


class LaneLostError(Exception):
    """The stream to the scheduler is of no more use."""


class Lease:
    """The lease of what is owned on one stream; times are seconds of the caller's monotonic clock.

    It counts from when the last message left of which the scheduler proved that it was heard: so it is never
    later than the scheduler's, whatever lies in buffers between.
    """

    def __init__(self, lease_s: float, now: float) -> None:
        """`hello` leaves at `now`."""
        self.period_s = lease_s / 3
        self._own_s = lease_s * _OWN_SHARE
        self._renewed = now
        self._sequence = 0
        self._beats: deque[tuple[int, float]] = deque()

    @property
    def expires(self) -> float:
        """When it runs out unless it is renewed."""
        return self._renewed + self._own_s

    def held(self, now: float) -> bool:
        """Whether nobody else can have closed our requests by now."""
        return now < self.expires

    def check(self, now: float) -> None:
        """Raise when the lease is not held any more."""
        if not self.held(now):
            raise LaneLostError("the lease ran out")

    def beat(self, now: float) -> int:
        """Count a heartbeat that leaves at `now`; its sequence number."""
        self._sequence += 1
        self._beats.append((self._sequence, now))
        return self._sequence

    def heard(self, sequence: int) -> None:
        """The scheduler answered a heartbeat: it was alive to us after that one left."""
        while self._beats and self._beats[0][0] <= sequence:
            self._renewed = max(self._renewed, self._beats.popleft()[1])
