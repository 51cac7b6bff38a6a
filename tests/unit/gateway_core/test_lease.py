import pytest

from services.gateway.core.lease import LaneLostError, Lease


def test_the_owners_lease_runs_out_before_the_schedulers():
    lease = Lease(10.0, now=100.0)
    lease.check(107.9)
    sequence = lease.beat(105.0)
    lease.heard(sequence)
    lease.check(112.9)
    assert lease.held(112.9)
    assert not lease.held(113.0)
    for late in (113.0, 115.0):
        with pytest.raises(LaneLostError):
            lease.check(late)


def test_what_nobody_proved_to_have_heard_renews_nothing():
    lease = Lease(10.0, now=100.0)
    for sent in (103.0, 106.0):
        lease.beat(sent)
    assert lease.expires == 108.0
    lease.heard(1)
    assert lease.expires == 111.0
    lease.heard(7)  # as good as an answer to the last one
    assert lease.expires == 114.0


def test_a_late_answer_does_not_turn_the_clock_back():
    lease = Lease(10.0, now=100.0)
    lease.beat(103.0)
    lease.beat(106.0)
    lease.heard(2)
    lease.heard(1)
    assert lease.expires == 114.0


def test_a_renewal_that_is_lost_leaves_time_for_another():
    assert 2 * Lease(10.0, now=0.0).period_s < 8.0
