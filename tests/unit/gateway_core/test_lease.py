import pytest

from services.gateway.core.lease import LaneLostError, Lease


def test_the_owners_lease_runs_out_before_the_schedulers():
    lease = Lease(10.0, now=100.0)
    lease.check(107.9)
    lease.renew(105.0)
    lease.check(112.9)
    assert lease.held(112.9)
    assert not lease.held(113.0)
    for late in (113.0, 115.0):
        with pytest.raises(LaneLostError):
            lease.check(late)


def test_a_renewal_that_is_lost_leaves_time_for_another():
    assert 2 * Lease(10.0, now=0.0).period_s < 8.0
