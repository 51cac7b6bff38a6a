"""The owner's lease, as its own clock tells it."""

from __future__ import annotations

_OWN_SHARE = 0.8  # the owner's clock runs out before the scheduler's


class LaneLostError(Exception):
    """The stream to the scheduler is of no more use."""


class Lease:
    """The owner's clock: counts from before the last write, so it is never later than the scheduler's."""

    def __init__(self, lease_s: float, now: float) -> None:
        self.period_s = lease_s / 3
        self._own_s = lease_s * _OWN_SHARE
        self._renewed = now

    def held(self, now: float) -> bool:
        """Whether nobody else can have closed our requests by now."""
        return now - self._renewed < self._own_s

    def check(self, now: float) -> None:
        """Raise when the lease is not held any more."""
        if not self.held(now):
            raise LaneLostError("the lease ran out")

    def renew(self, now: float) -> None:
        """A message left at `now`."""
        self._renewed = now
