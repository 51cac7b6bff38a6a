"""Which worker holds which model version, for as long as its lease lives."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from services.registry.core.errors import NothingDeployedError, SupersededError, UnknownLeaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Availability(enum.Enum):
    """What the scheduler may do with a worker."""

    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class WorkerState(enum.Enum):
    """What a worker says of itself."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True)
class WorkerChanged:
    """A worker's availability changed."""

    worker_id: str
    target: str
    incarnation: str
    model_version: str
    availability: Availability


@dataclass(frozen=True)
class Lease:
    """A worker process, the version it was given, and until when it is trusted to live."""

    worker_id: str
    target: str
    incarnation: str
    model_version: str
    expires_at: float
    announced: Availability = Availability.GONE
    state: WorkerState = WorkerState.LOADING


# A worker that loads is nothing the scheduler can use.
_AVAILABILITY = {
    WorkerState.LOADING: Availability.GONE,
    WorkerState.READY: Availability.READY,
    WorkerState.DRAINING: Availability.DRAINING,
}


class Assignments:
    """All leases. Every method returns the changes to announce, in order."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._leases: dict[str, Lease] = {}
        self.expired = 0

    @property
    def leases(self) -> Iterable[Lease]:
        """Every living lease."""
        return self._leases.values()

    def restore(self, announced: Iterable[WorkerChanged], now: float) -> None:
        """Trust, for one lease, the workers that were announced before the registry restarted."""
        for change in announced:
            if change.availability is not Availability.GONE:
                self._leases[change.worker_id] = Lease(
                    worker_id=change.worker_id,
                    target=change.target,
                    incarnation=change.incarnation,
                    model_version=change.model_version,
                    expires_at=now + self.lease_s,
                    announced=change.availability,
                    state=WorkerState(change.availability.value),
                )

    def join(
        self, worker_id: str, target: str, incarnation: str, deployed: Sequence[str], now: float
    ) -> tuple[str, list[WorkerChanged]]:
        """Give a process what it already holds, else the deployed version with the fewest workers."""
        old = self._leases.get(worker_id)
        if old and old.incarnation == incarnation:
            self._leases[worker_id] = replace(old, target=target, expires_at=now + self.lease_s)
            return old.model_version, []
        if not deployed:
            raise NothingDeployedError
        version = self._least_served(worker_id, deployed, old.model_version if old else "")
        changes = self._end(worker_id)
        self._leases[worker_id] = Lease(worker_id, target, incarnation, version, now + self.lease_s)
        return version, changes

    def renew(self, worker_id: str, incarnation: str, state: WorkerState, now: float) -> list[WorkerChanged]:
        """Keep a lease, and announce the worker when its state says so."""
        lease = self._leases.get(worker_id)
        if lease is None:
            raise UnknownLeaseError(worker_id)
        if lease.incarnation != incarnation:
            raise SupersededError(worker_id)
        availability = _AVAILABILITY[state]
        changed = availability is not lease.announced
        lease = replace(lease, state=state, announced=availability, expires_at=now + self.lease_s)
        self._leases[worker_id] = lease
        return [_change(lease, availability)] if changed else []

    def expire(self, now: float) -> list[WorkerChanged]:
        """End the leases that ran out."""
        ended = [lease.worker_id for lease in self._leases.values() if lease.expires_at <= now]
        self.expired += len(ended)
        return [change for worker_id in ended for change in self._end(worker_id)]

    def extend(self, now: float) -> None:
        """Trust everyone for one more lease: nobody could renew while the registry itself stood still."""
        for worker_id, lease in self._leases.items():
            self._leases[worker_id] = replace(lease, expires_at=now + self.lease_s)

    def next_expiry(self) -> float | None:
        """When the first lease runs out unless it is renewed."""
        return min((lease.expires_at for lease in self._leases.values()), default=None)

    def _least_served(self, worker_id: str, deployed: Sequence[str], previous: str) -> str:
        served = Counter(
            lease.model_version for lease in self._leases.values() if lease.worker_id != worker_id
        )
        return min(deployed, key=lambda version: (served[version], version != previous))

    def _end(self, worker_id: str) -> list[WorkerChanged]:
        lease = self._leases.pop(worker_id, None)
        if lease is None or lease.announced is Availability.GONE:
            return []
        return [_change(lease, Availability.GONE)]


def _change(lease: Lease, availability: Availability) -> WorkerChanged:
    return WorkerChanged(lease.worker_id, lease.target, lease.incarnation, lease.model_version, availability)
