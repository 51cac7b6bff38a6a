"""Ownership: leases, followers, hand-overs, takeovers and stale verdicts."""

import pytest

from services.scheduler.core.ownership import Ownership, Promotion, Takeover, same_gateway


@pytest.fixture
def ownership():
    ownership = Ownership(lease_s=10)
    for stream in ("gw/1", "b/1", "c/1"):
        ownership.renew(stream, now=0.0)
    return ownership


def tick(ownership, until, start=0.0, alive=()):
    now, gone, promotions, takeovers = start, [], [], []
    while now <= until:
        for stream in alive:
            ownership.renew(stream, now)
        expired = ownership.expire(now)
        gone += expired.gone
        promotions += expired.promotions
        takeovers += expired.takeovers
        now += 1.0
    return gone, promotions, takeovers


OTHERS = ("b/1", "c/1")


def test_a_lease_that_runs_out_takes_every_request_over_under_the_next_epoch(ownership):
    assert ownership.grant(7, "gw/1") == 1
    assert ownership.grant(5, "gw/1") == 1
    gone, promotions, takeovers = tick(ownership, until=10.0, alive=OTHERS)
    assert (gone, promotions) == (["gw/1"], [])
    assert takeovers == [Takeover(5, 2), Takeover(7, 2)]
    assert 7 not in ownership


def test_any_message_renews(ownership):
    ownership.grant(7, "gw/1")
    tick(ownership, until=9.0, alive=OTHERS)
    ownership.renew("gw/1", now=9.0)
    assert tick(ownership, until=18.0, start=10.0, alive=OTHERS) == ([], [], [])
    assert tick(ownership, until=19.0, start=19.0, alive=OTHERS)[2] == [Takeover(7, 2)]


def test_a_new_stream_does_not_renew_what_the_broken_one_held(ownership):
    ownership.grant(7, "gw/1")
    tick(ownership, until=5.0, alive=OTHERS)
    ownership.disconnect("gw/1", now=2.0)
    ownership.renew("gw/2", now=5.0)
    ownership.grant(8, "gw/2")
    gone, _, takeovers = tick(ownership, until=12.0, start=6.0, alive=OTHERS)
    assert (gone, takeovers) == (["gw/1"], [Takeover(7, 2)])
    assert ownership.owner_of(8) == "gw/2"


def test_a_request_submitted_again_is_owned_under_a_higher_epoch(ownership):
    ownership.grant(7, "gw/1")
    assert ownership.grant(7, "gw/2") == 2
    assert ownership.owner_of(7) == "gw/2"
    assert tick(ownership, until=10.0, alive=OTHERS) == (["gw/1"], [], [])


def test_a_grant_is_above_every_epoch_the_gateway_knows_of(ownership):
    assert ownership.grant(7, "gw/1", above=4) == 5
    assert ownership.attach(7, "gw/2", above=9) == 10
    assert ownership.attach(7, "gw/3", above=2) == 11


def test_a_pause_of_the_scheduler_itself_ends_nobodys_lease(ownership):
    ownership.grant(7, "gw/1", resume_lease_s=20)
    ownership.expire(0.0)
    assert tick(ownership, until=60.0, start=60.0) == ([], [], [])
    assert tick(ownership, until=70.0, start=61.0, alive=OTHERS) == (["gw/1"], [], [])
    assert tick(ownership, until=140.0, start=140.0, alive=OTHERS) == ([], [], [])
    assert tick(ownership, until=160.0, start=141.0, alive=OTHERS)[2] == [Takeover(7, 2)]


def test_owners_are_told_apart_by_gateway_exactly():
    assert same_gateway("gw/1", "gw/2")
    assert not same_gateway("gw/1", "gw2/1")
    assert not same_gateway("a/b/1", "a/1")


def test_a_stream_follows_what_another_gateway_owns_and_hears_of_it_from_then_on(ownership):
    ownership.grant(7, "gw/1")
    assert ownership.attach(7, "b/1") == 0
    assert ownership.attach(7, "b/1") == 0
    assert ownership.audience(7) == ("gw/1", "b/1")
    assert ownership.followed == 1
    assert ownership.release(7) == ["b/1"]
    assert (ownership.audience(7), ownership.followed) == ((), 0)


def test_the_owners_gateway_gets_its_request_back_on_a_new_stream_at_once(ownership):
    ownership.grant(7, "gw/1")
    ownership.attach(7, "b/1")
    ownership.disconnect("gw/1", now=1.0)
    assert ownership.attach(7, "gw/2") == 2
    assert ownership.attach(7, "gw/2") == 2
    assert ownership.audience(7) == ("gw/2", "b/1")
    gone, promotions, takeovers = tick(ownership, until=11.0, alive=(*OTHERS, "gw/2"))
    assert (gone, promotions, takeovers) == (["gw/1"], [], [])


def test_a_broken_owner_keeps_its_request_until_its_lease_has_run_out_though_others_follow(ownership):
    ownership.grant(7, "gw/1")
    ownership.attach(7, "c/1")
    ownership.attach(7, "b/1")
    ownership.disconnect("gw/1", now=3.0)
    assert tick(ownership, until=12.0, alive=OTHERS) == ([], [], [])
    _, promotions, takeovers = tick(ownership, until=13.0, start=13.0, alive=OTHERS)
    assert (promotions, takeovers) == ([Promotion("c/1", 7, 2, "gw/1")], [])
    assert ownership.audience(7) == ("c/1", "b/1")


def test_a_follower_whose_stream_broke_inherits_nothing(ownership):
    ownership.grant(7, "gw/1")
    ownership.attach(7, "c/1")
    ownership.attach(7, "b/1")
    ownership.disconnect("c/1", now=1.0)
    assert ownership.audience(7) == ("gw/1", "b/1")
    _, promotions, _ = tick(ownership, until=10.0, alive=["b/1"])
    assert promotions == [Promotion("b/1", 7, 2, "gw/1")]


def test_streams_whose_leases_end_together_do_not_inherit_from_one_another(ownership):
    ownership.grant(7, "gw/1")
    ownership.attach(7, "c/1")
    gone, promotions, takeovers = tick(ownership, until=10.0, alive=["b/1"])
    assert (sorted(gone), promotions, takeovers) == (["c/1", "gw/1"], [], [Takeover(7, 2)])


def test_without_a_follower_a_request_waits_for_an_owner_through_its_resume_lease(ownership):
    ownership.grant(7, "gw/1", resume_lease_s=5)
    assert tick(ownership, until=14.0, alive=OTHERS) == (["gw/1"], [], [])
    assert (ownership.orphans, ownership.owner_of(7), ownership.audience(7)) == ([7], None, ())
    assert tick(ownership, until=15.0, start=15.0, alive=OTHERS)[2] == [Takeover(7, 2)]
    assert ownership.orphans == []


def test_whoever_attaches_to_an_ownerless_request_owns_it(ownership):
    ownership.grant(7, "gw/1", resume_lease_s=5)
    tick(ownership, until=12.0, alive=OTHERS)
    assert ownership.attach(7, "b/1") == 2
    assert ownership.attach(7, "c/1") == 0
    assert tick(ownership, until=20.0, start=13.0, alive=OTHERS) == ([], [], [])


def test_an_owner_that_detaches_hands_over_and_the_last_one_leaves_an_orphan(ownership):
    ownership.grant(7, "gw/1", resume_lease_s=5)
    ownership.attach(7, "b/1")
    assert ownership.detach(7, "gw/1", now=1.0) == Promotion("b/1", 7, 2, "gw/1")
    assert ownership.detach(7, "gw/1", now=1.0) is None
    assert ownership.detach(7, "b/1", now=2.0) is None
    assert ownership.orphans == [7]
    assert tick(ownership, until=7.0, start=7.0)[2] == [Takeover(7, 3)]


def test_an_owner_that_detaches_without_a_resume_lease_ends_the_request(ownership):
    ownership.grant(7, "gw/1")
    assert ownership.detach(7, "gw/1", now=1.0) == Takeover(7, 2)


def test_a_follower_that_detaches_changes_nothing_else(ownership):
    ownership.grant(7, "gw/1")
    ownership.attach(7, "b/1")
    assert ownership.detach(7, "b/1", now=1.0) is None
    assert ownership.detach(9, "b/1", now=1.0) is None
    assert ownership.audience(7) == ("gw/1",)


def test_all_that_waits_for_an_owner_can_be_taken_over_at_once(ownership):
    ownership.grant(7, "gw/1", resume_lease_s=5)
    ownership.grant(8, "gw/1", resume_lease_s=5)
    ownership.detach(7, "gw/1", now=1.0)
    assert ownership.abandon() == [Takeover(7, 2)]
    assert ownership.owner_of(8) == "gw/1"
