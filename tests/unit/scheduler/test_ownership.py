"""Ownership: leases, takeovers and stale verdicts."""

import pytest

from services.scheduler.core.ownership import Ownership, Takeover, same_gateway


@pytest.fixture
def ownership():
    ownership = Ownership(lease_s=10)
    ownership.renew("gw/1", now=0.0)
    return ownership


def tick(ownership, until, start=0.0):
    now, gone, takeovers = start, [], []
    while now <= until:
        more_gone, more = ownership.expire(now)
        gone += more_gone
        takeovers += more
        now += 1.0
    return gone, takeovers


def test_a_lease_that_runs_out_takes_every_request_over_under_the_next_epoch(ownership):
    assert ownership.grant(7, "gw/1") == 1
    assert ownership.grant(5, "gw/1") == 1
    gone, takeovers = tick(ownership, until=10.0)
    assert gone == ["gw/1"]
    assert takeovers == [Takeover(5, 2), Takeover(7, 2)]


def test_any_message_renews(ownership):
    ownership.grant(7, "gw/1")
    tick(ownership, until=9.0)
    ownership.renew("gw/1", now=9.0)
    assert tick(ownership, until=18.0, start=10.0) == ([], [])
    assert tick(ownership, until=19.0, start=19.0) == (["gw/1"], [Takeover(7, 2)])


def test_a_late_settle_with_a_stale_epoch_is_ignored(ownership):
    ownership.grant(7, "gw/1")
    tick(ownership, until=10.0)
    assert not ownership.settle(7, owner_epoch=1)


def test_settle_releases_once(ownership):
    ownership.grant(7, "gw/1")
    assert ownership.settle(7, owner_epoch=1)
    assert not ownership.settle(7, owner_epoch=1)
    assert tick(ownership, until=10.0) == (["gw/1"], [])


def test_a_new_stream_does_not_renew_what_the_broken_one_held(ownership):
    ownership.grant(7, "gw/1")
    tick(ownership, until=5.0)
    ownership.renew("gw/2", now=5.0)
    ownership.grant(8, "gw/2")
    assert tick(ownership, until=12.0, start=6.0) == (["gw/1"], [Takeover(7, 2)])
    assert ownership.owner_of(8) == "gw/2"


def test_a_request_submitted_again_is_owned_under_a_higher_epoch(ownership):
    ownership.grant(7, "gw/1")
    assert ownership.grant(7, "gw/2") == 2
    assert not ownership.settle(7, owner_epoch=1)
    assert tick(ownership, until=10.0) == (["gw/1"], [])
    assert ownership.settle(7, owner_epoch=2)


def test_a_pause_of_the_scheduler_itself_ends_nobodys_lease(ownership):
    ownership.grant(7, "gw/1")
    ownership.expire(0.0)
    assert ownership.expire(60.0) == ([], [])
    assert tick(ownership, until=70.0, start=61.0) == (["gw/1"], [Takeover(7, 2)])


def test_owners_are_told_apart_by_gateway_exactly():
    assert same_gateway("gw/1", "gw/2")
    assert not same_gateway("gw/1", "gw2/1")
    assert not same_gateway("a/b/1", "a/1")
