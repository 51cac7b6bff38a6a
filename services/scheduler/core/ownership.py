"""Who may close a request: one owner at a time, by a lease that any message renews."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

FIRST_EPOCH = 1
PAUSE_FRACTION = 0.25


@dataclass(slots=True)
class _Holding:
    owner: str
    owner_epoch: int


@dataclass(frozen=True, slots=True)
class Takeover:
    """A request whose owner is gone: the scheduler closes it under `owner_epoch`."""

    request_id: int
    owner_epoch: int


def owner_name(gateway_id: str, stream: int) -> str:
    """Name a gateway's stream: the owner of what is submitted on it."""
    return f"{gateway_id}/{stream}"


def same_gateway(one: str, other: str) -> bool:
    """Whether two owners are streams of one gateway."""
    return one.rpartition("/")[0] == other.rpartition("/")[0]


class Ownership:
    """Leases of gateway streams and the requests they own.

    An owner is one stream, not one gateway: a gateway that comes back on a new stream does not renew
    what it held on the broken one. Times are seconds on the caller's monotonic clock.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._expiry: dict[str, float] = {}
        self._holdings: dict[int, _Holding] = {}
        self._held: defaultdict[str, set[int]] = defaultdict(set)
        self._checked: float | None = None

    def renew(self, owner: str, now: float) -> None:
        """Start or renew the lease of a stream; the loss of the stream starts its clock the last time."""
        self._expiry[owner] = now + self._lease_s

    def grant(self, request_id: int, owner: str) -> int:
        """Make `owner` own a request and return the epoch of that ownership, above every earlier one."""
        earlier = self._holdings.get(request_id)
        epoch = FIRST_EPOCH
        if earlier is not None:
            epoch = earlier.owner_epoch + 1
            self._release(request_id, earlier.owner)
        self._holdings[request_id] = _Holding(owner, epoch)
        self._held[owner].add(request_id)
        return epoch

    def owner_of(self, request_id: int) -> str | None:
        """Return who owns a request that is not settled yet."""
        holding = self._holdings.get(request_id)
        return holding.owner if holding else None

    def settle(self, request_id: int, owner_epoch: int) -> bool:
        """Release a request on its owner's verdict; False for an unknown request or a stale epoch."""
        holding = self._holdings.get(request_id)
        if holding is None or holding.owner_epoch != owner_epoch:
            return False
        self._release(request_id, holding.owner)
        return True

    def expire(self, now: float) -> tuple[list[str], list[Takeover]]:
        """Return the owners whose lease ran out, and every request taken over from them."""
        self._forgive_pause(now)
        gone = [owner for owner, expiry in self._expiry.items() if expiry <= now]
        takeovers = []
        for owner in gone:
            del self._expiry[owner]
            for request_id in sorted(self._held[owner]):
                epoch = self._holdings[request_id].owner_epoch + 1
                self._release(request_id, owner)
                takeovers.append(Takeover(request_id, epoch))
            self._held.pop(owner, None)
        return gone, takeovers

    def _release(self, request_id: int, owner: str) -> None:
        del self._holdings[request_id]
        self._held[owner].discard(request_id)

    def _forgive_pause(self, now: float) -> None:
        """Extend every lease by a pause of our own, in which renewals arrived but were not read."""
        pause = now - self._checked if self._checked is not None else 0.0
        self._checked = now
        if pause > self._lease_s * PAUSE_FRACTION:
            for owner in self._expiry:
                self._expiry[owner] += pause
