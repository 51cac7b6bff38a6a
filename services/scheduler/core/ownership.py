"""Who may close a request: one owner at a time, by a lease that any message renews; and who follows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from services.scheduler.core.records import Record

PAUSE_FRACTION = 0.25


@dataclass(slots=True)
class _Holding:
    """`owner` is None while the request waits for one; `audience` hears what happens to it."""

    owner: str | None = None
    owner_epoch: int = 0
    resume_lease_s: float = 0.0
    followers: list[str] = field(default_factory=list)  # longest first
    audience: tuple[str, ...] = ()

    def refresh(self) -> None:
        """Make the audience that of the owner and the followers."""
        owner = () if self.owner is None else (self.owner,)
        self.audience = (*owner, *self.followers)


class Takeover(NamedTuple):
    """A request that nobody owns any more: the scheduler closes it under `owner_epoch`."""

    request_id: int
    owner_epoch: int


class Promotion(NamedTuple):
    """A follower that owns the request from now on, in the place of the stream `before`."""

    stream: str
    request_id: int
    owner_epoch: int
    before: str


@dataclass(slots=True)
class Expired:
    """What the passing of time did: streams without a lease, and what became of their requests."""

    gone: list[str] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)

    def note(self, outcome: Promotion | Takeover | None) -> None:
        """Add what became of one request; nothing when it waits for an owner."""
        if isinstance(outcome, Promotion):
            self.promotions.append(outcome)
        elif outcome is not None:
            self.takeovers.append(outcome)


@dataclass(slots=True)
class Tally:
    """What became of requests whose owner was lost, by model version."""

    handovers: dict[str, int] = field(default_factory=dict)  # to a stream that attached or followed
    takeovers: dict[str, int] = field(default_factory=dict)  # by the scheduler, which closed them

    @staticmethod
    def count(counts: dict[str, int], record: Record | None) -> None:
        """Count one more request of its model version."""
        if record is not None:
            version = record.order.model_version
            counts[version] = counts.get(version, 0) + 1


def owner_name(gateway_id: str, stream: int) -> str:
    """Name a gateway's stream: the owner of what is submitted on it."""
    return f"{gateway_id}/{stream}"


def same_gateway(one: str, other: str) -> bool:
    """Whether two owners are streams of one gateway."""
    return one.rpartition("/")[0] == other.rpartition("/")[0]


class Ownership:
    """Leases of gateway streams, the requests they own and those they follow.

    An owner is one stream, not one gateway: a gateway that comes back on a new stream does not renew
    what it held on the broken one; it attaches to it. Times are seconds on the caller's monotonic clock.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._expiry: dict[str, float] = {}
        self._holdings: dict[int, _Holding] = {}
        self._held: defaultdict[str, set[int]] = defaultdict(set)
        self._followed: defaultdict[str, set[int]] = defaultdict(set)
        self._orphans: dict[int, float] = {}  # request without an owner -> when its resume lease runs out
        self._checked: float | None = None

    def __contains__(self, request_id: int) -> bool:
        """Whether a request is not settled yet."""
        return request_id in self._holdings

    @property
    def orphans(self) -> list[int]:
        """The requests that wait for an owner."""
        return list(self._orphans)

    @property
    def followed(self) -> int:
        """How many times a stream follows a request."""
        return sum(map(len, self._followed.values()))

    def owner_of(self, request_id: int) -> str | None:
        """Return who owns a request; None for one that is settled or waits for an owner."""
        holding = self._holdings.get(request_id)
        return holding.owner if holding else None

    def epoch_of(self, request_id: int) -> int:
        """Return the epoch of the latest ownership of a request that is not settled; 0 for others."""
        holding = self._holdings.get(request_id)
        return holding.owner_epoch if holding else 0

    def audience(self, request_id: int) -> tuple[str, ...]:
        """Return the streams that hear what happens to a request, its owner first."""
        holding = self._holdings.get(request_id)
        return holding.audience if holding is not None else ()

    def renew(self, stream: str, now: float) -> None:
        """Start or renew the lease of a stream."""
        self._expiry[stream] = now + self._lease_s

    def disconnect(self, stream: str, now: float) -> None:
        """Note that a stream broke: it follows no more; what it owns it owns until its last lease ends."""
        self.renew(stream, now)
        for request_id in self._followed.pop(stream, ()):
            self._unfollow(request_id, stream)

    def grant(self, request_id: int, stream: str, *, above: int = 0, resume_lease_s: float = 0.0) -> int:
        """Make a stream own a request; return the epoch, above every earlier one and `above`."""
        holding = self._holdings.setdefault(request_id, _Holding())
        holding.resume_lease_s = resume_lease_s
        return self._give(request_id, holding, stream, above)

    def keep(self, request_id: int, resume_lease_s: float) -> None:
        """Let a request wait for so long for an owner, once it has none."""
        self._holdings[request_id].resume_lease_s = resume_lease_s

    def attach(self, request_id: int, stream: str, above: int = 0) -> int:
        """Let a stream follow a request that is not settled; return the epoch if it owns it, else 0.

        It becomes the owner at once in the place of nobody, or of an older stream of its gateway.
        """
        holding = self._holdings[request_id]
        owner = holding.owner
        if owner == stream:
            return holding.owner_epoch
        if owner is None or same_gateway(owner, stream):
            return self._give(request_id, holding, stream, above)
        if stream not in holding.followers:
            holding.followers.append(stream)
            self._followed[stream].add(request_id)
            holding.refresh()
        return 0

    def detach(self, request_id: int, stream: str, now: float) -> Promotion | Takeover | None:
        """Stop following; from the owner's gateway: give the ownership up and say what becomes of it."""
        holding = self._holdings.get(request_id)
        if holding is None:
            return None
        self._followed[stream].discard(request_id)
        self._unfollow(request_id, stream)
        if holding.owner is not None and same_gateway(holding.owner, stream):
            return self._give_up(request_id, now)
        return None

    def release(self, request_id: int) -> list[str]:
        """Forget a settled request; return who followed it."""
        holding = self._holdings.pop(request_id)
        self._orphans.pop(request_id, None)
        if holding.owner is not None:
            self._held[holding.owner].discard(request_id)
        for stream in holding.followers:
            self._followed[stream].discard(request_id)
        return holding.followers

    def expire(self, now: float) -> Expired:
        """End the leases that ran out."""
        self._forgive_pause(now)
        expired = Expired([stream for stream, expiry in self._expiry.items() if expiry <= now])
        for stream in expired.gone:  # none of them may inherit from another
            del self._expiry[stream]
            for request_id in self._followed.pop(stream, ()):
                self._unfollow(request_id, stream)
        for stream in expired.gone:
            for request_id in sorted(self._held.pop(stream, ())):
                expired.note(self._give_up(request_id, now))
        for request_id in [one for one, until in self._orphans.items() if until <= now]:
            expired.note(self._take_over(request_id))
        return expired

    def abandon(self) -> list[Takeover]:
        """Take over every request that waits for an owner."""
        return [self._take_over(request_id) for request_id in self.orphans]

    def _give(self, request_id: int, holding: _Holding, stream: str, above: int) -> int:
        if holding.owner is not None:
            self._held[holding.owner].discard(request_id)
        self._orphans.pop(request_id, None)
        self._followed[stream].discard(request_id)
        if stream in holding.followers:
            holding.followers.remove(stream)
        holding.owner = stream
        holding.owner_epoch = max(holding.owner_epoch, above) + 1
        self._held[stream].add(request_id)
        holding.refresh()
        return holding.owner_epoch

    def _give_up(self, request_id: int, now: float) -> Promotion | Takeover | None:
        holding = self._holdings[request_id]
        before = holding.owner
        assert before is not None
        if holding.followers:
            heir = holding.followers[0]
            return Promotion(heir, request_id, self._give(request_id, holding, heir, 0), before)
        self._held[before].discard(request_id)
        holding.owner = None
        holding.refresh()
        if holding.resume_lease_s <= 0:
            return self._take_over(request_id)
        self._orphans[request_id] = now + holding.resume_lease_s
        return None

    def _take_over(self, request_id: int) -> Takeover:
        epoch = self._holdings[request_id].owner_epoch + 1
        self.release(request_id)
        return Takeover(request_id, epoch)

    def _unfollow(self, request_id: int, stream: str) -> None:
        holding = self._holdings[request_id]
        if stream in holding.followers:
            holding.followers.remove(stream)
            holding.refresh()

    def _forgive_pause(self, now: float) -> None:
        """Extend every lease by a pause of our own, in which renewals arrived but were not read."""
        pause = now - self._checked if self._checked is not None else 0.0
        self._checked = now
        if pause > self._lease_s * PAUSE_FRACTION:
            for stream in self._expiry:
                self._expiry[stream] += pause
            for request_id in self._orphans:
                self._orphans[request_id] += pause
