"""Deadlines: earliest first, and nothing kept of what has ended."""

from services.scheduler.core.deadlines import SLACK, Deadlines


def test_due_requests_come_out_once_and_in_order():
    deadlines = Deadlines()
    for request_id, deadline in [(1, 30.0), (2, 10.0), (3, 20.0)]:
        deadlines.add(request_id, deadline)
    assert deadlines.next() == 10.0
    assert deadlines.due(20.0) == [2, 3]
    assert deadlines.due(20.0) == []
    assert deadlines.next() == 30.0


def test_an_ended_request_is_never_due():
    deadlines = Deadlines()
    deadlines.add(1, 10.0)
    deadlines.discard(1)
    deadlines.discard(1)
    assert deadlines.next() is None
    assert deadlines.due(100.0) == []


def test_far_deadlines_of_ended_requests_do_not_pile_up():
    deadlines = Deadlines()
    deadlines.add(0, 1e9)
    for request_id in range(1, 10_000):
        deadlines.add(request_id, 2e9 + request_id)
        deadlines.discard(request_id)
    assert len(deadlines._heap) <= SLACK + 4
    assert deadlines.next() == 1e9
