"""Leases: who is assigned what, and what the scheduler is told."""

from __future__ import annotations

import pytest

from services.registry.core.assignments import Assignments, Availability, WorkerChanged, WorkerState
from services.registry.core.errors import NothingDeployedError, SupersededError, UnknownLeaseError

LEASE_S = 10.0
A, B = "a@000000000000", "b@000000000000"


def change(availability: Availability, incarnation: str = "i1", worker: str = "w1") -> WorkerChanged:
    return WorkerChanged(worker, f"{worker}:1", incarnation, A, availability)


@pytest.fixture
def assignments() -> Assignments:
    return Assignments(LEASE_S)


def join(
    assignments: Assignments, worker: str = "w1", incarnation: str = "i1", now: float = 0.0
) -> list[WorkerChanged]:
    return assignments.join(worker, f"{worker}:1", incarnation, [A], now)[1]


def test_workers_spread_over_what_is_deployed(assignments: Assignments) -> None:
    given = [assignments.join(f"w{i}", "t", "i", [A, B], 0.0)[0] for i in range(4)]
    assert sorted(given) == [A, A, B, B]


def test_a_restarted_worker_takes_back_its_version(assignments: Assignments) -> None:
    for worker in ("w1", "w2"):
        assignments.join(worker, "t", "i1", [A, B], 0.0)
    assert assignments.join("w2", "t", "i2", [A, B], 1.0)[0] == B


def test_nothing_deployed_gives_no_lease(assignments: Assignments) -> None:
    with pytest.raises(NothingDeployedError):
        assignments.join("w1", "t", "i1", [], 0.0)
    assert list(assignments.leases) == []


def test_a_loading_worker_is_not_announced_and_a_ready_one_is_once(assignments: Assignments) -> None:
    assert join(assignments) == []
    assert assignments.renew("w1", "i1", WorkerState.LOADING, 1.0) == []
    assert assignments.renew("w1", "i1", WorkerState.READY, 2.0) == [change(Availability.READY)]
    assert assignments.renew("w1", "i1", WorkerState.READY, 3.0) == []
    assert assignments.renew("w1", "i1", WorkerState.DRAINING, 4.0) == [change(Availability.DRAINING)]


def test_a_lease_that_runs_out_is_announced_gone_once(assignments: Assignments) -> None:
    join(assignments)
    assignments.renew("w1", "i1", WorkerState.READY, 5.0)
    assert assignments.next_expiry() == 15.0
    assert assignments.expire(14.9) == []
    assert assignments.expire(15.0) == [change(Availability.GONE)]
    assert assignments.expire(99.0) == []
    with pytest.raises(UnknownLeaseError):
        assignments.renew("w1", "i1", WorkerState.READY, 16.0)


def test_a_worker_that_never_was_ready_goes_without_an_event(assignments: Assignments) -> None:
    join(assignments)
    assert assignments.expire(LEASE_S) == []
    assert list(assignments.leases) == []


def test_a_new_process_ends_the_old_one_at_once(assignments: Assignments) -> None:
    join(assignments)
    assignments.renew("w1", "i1", WorkerState.READY, 0.0)
    assert join(assignments, incarnation="i2", now=1.0) == [change(Availability.GONE)]
    assert assignments.renew("w1", "i2", WorkerState.READY, 2.0) == [change(Availability.READY, "i2")]


def test_two_living_processes_with_one_id_do_not_take_turns(assignments: Assignments) -> None:
    join(assignments)
    join(assignments, incarnation="i2", now=1.0)
    with pytest.raises(SupersededError):
        assignments.renew("w1", "i1", WorkerState.READY, 2.0)
    assert assignments.renew("w1", "i2", WorkerState.READY, 2.0) == [change(Availability.READY, "i2")]


def test_joining_twice_changes_nothing(assignments: Assignments) -> None:
    join(assignments)
    assignments.renew("w1", "i1", WorkerState.READY, 0.0)
    assert assignments.join("w1", "w1:1", "i1", [B], 1.0) == (A, [])
    assert assignments.next_expiry() == 1.0 + LEASE_S


def test_brief_loss_of_the_coordinator_restarts_nothing(assignments: Assignments) -> None:
    assignments.restore([change(Availability.READY), change(Availability.GONE, worker="w2")], 100.0)
    assert assignments.expire(100.0 + LEASE_S - 0.1) == []
    assert assignments.renew("w1", "i1", WorkerState.READY, 105.0) == []
    assert [lease.worker_id for lease in assignments.leases] == ["w1"]


def test_a_worker_that_died_while_the_registry_was_away_is_gone_after_one_lease(
    assignments: Assignments,
) -> None:
    assignments.restore([change(Availability.DRAINING)], 100.0)
    assert assignments.expire(100.0 + LEASE_S) == [change(Availability.GONE)]


def test_a_registry_that_stood_still_blames_nobody(assignments: Assignments) -> None:
    join(assignments)
    assignments.renew("w1", "i1", WorkerState.READY, 0.0)
    assignments.extend(500.0)
    assert assignments.expire(500.0) == []
    assert assignments.next_expiry() == 500.0 + LEASE_S
