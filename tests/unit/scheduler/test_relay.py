"""Who follows a request hears nothing that its owner has not heard."""

import pytest

from services.scheduler.core import desk
from services.scheduler.core.messages import ChoiceEnded, FinishReason, RequestEnded, TokenCommitted
from services.scheduler.core.notices import Attached, Granted, Settled, Sync
from services.scheduler.core.records import Verdict
from tests.unit.scheduler.test_desk import House


@pytest.fixture
def house():
    """An owner that gives its word, two followers, and one token that all of them have."""
    house = House()
    for stream in ("gw/1", "b/1", "c/1"):
        house.open(stream)
        house.desk.relay.trust(stream)
    house.submit(lease_s=20.0)
    house.step()
    for stream in ("b/1", "c/1"):
        house.desk.attach_stream(stream, 1, "acme", house.now)
    told = house.desk.effects(house.now)
    house.desk.relay.heard("gw/1", told["gw/1"][-1].number)
    house.desk.effects(house.now)
    return house


def told(house):
    return house.desk.effects(house.now)


def kinds(notices):
    return [type(notice) for notice in notices]


def verdict(*output, epoch=1):
    return Verdict(epoch, FinishReason.CANCELLED, output, choice_reasons=(FinishReason.CANCELLED,))


def test_a_follower_waits_for_the_owners_word(house):
    house.step()
    first = told(house)
    assert kinds(first["gw/1"]) == [TokenCommitted, Sync]
    assert list(first) == ["gw/1"]
    house.desk.relay.heard("gw/1", first["gw/1"][-1].number)
    assert {stream: kinds(notices) for stream, notices in told(house).items()} == {
        "b/1": [TokenCommitted],
        "c/1": [TokenCommitted],
    }


def test_an_owner_is_asked_once_for_all_that_it_is_told_together(house):
    house.step()
    house.step()
    notices = told(house)["gw/1"]
    assert kinds(notices) == [TokenCommitted, TokenCommitted, Sync]
    house.desk.relay.heard("gw/1", notices[-1].number)
    assert kinds(told(house)["b/1"]) == [TokenCommitted, TokenCommitted]


def test_an_early_word_lets_nothing_later_go(house):
    house.step()
    first = told(house)["gw/1"][-1].number
    house.step()
    second = told(house)["gw/1"][-1].number
    house.desk.relay.heard("gw/1", first)
    assert [one.index for one in told(house)["b/1"]] == [1]
    house.desk.relay.heard("gw/1", second)
    assert [one.index for one in told(house)["b/1"]] == [2]


def test_nobody_waits_where_nobody_follows():
    house = House()
    house.desk.relay.trust("gw/1")
    house.submit()
    house.step()
    assert kinds(told(house)["gw/1"]) == [TokenCommitted]


def test_nobody_waits_for_a_gateway_that_gives_no_word():
    house = House()
    house.open("b/1")
    house.submit()
    house.step()
    house.desk.attach_stream("b/1", 1, "acme", house.now)
    house.step()
    assert kinds(told(house)["b/1"]) == [Attached, TokenCommitted]


def test_who_attaches_hears_only_what_the_owner_has_heard(house):
    house.open("d/1")
    house.step()
    house.desk.attach_stream("d/1", 1, "acme", house.now)
    house.step()
    first = told(house)
    assert "d/1" not in first
    house.desk.relay.heard("gw/1", first["gw/1"][-1].number)
    attached, token = told(house)["d/1"]
    assert (len(attached.record.choices[0].token_ids), token.index) == (2, 2)


def test_an_heir_hears_of_its_ownership_before_what_its_predecessor_may_not_have_heard(house):
    house.step()
    told(house)
    house.desk.detach_stream("gw/1", 1, house.now)
    notices = told(house)
    assert kinds(notices["b/1"]) == [Granted, TokenCommitted, Sync]
    assert "c/1" not in notices
    house.desk.relay.heard("b/1", notices["b/1"][-1].number)
    assert kinds(told(house)["c/1"]) == [TokenCommitted]


def test_an_heir_that_is_not_attached_yet_is_told_all_there_is_as_its_owner(house):
    for stream in ("b/1", "c/1"):
        house.desk.detach_stream(stream, 1, house.now)
    house.step()
    house.desk.attach_stream("b/1", 1, "acme", house.now)
    house.step()
    told(house)
    house.desk.detach_stream("gw/1", 1, house.now)
    (attached,) = told(house)["b/1"]
    assert (attached.owner_epoch, len(attached.record.choices[0].token_ids)) == (2, 3)


def test_an_owner_that_comes_back_on_another_stream_is_asked_there(house):
    house.step()
    told(house)
    house.desk.disconnect("gw/1", house.now)
    house.open("gw/2")
    house.desk.relay.trust("gw/2")
    house.desk.attach_stream("gw/2", 1, "acme", house.now, above=1)
    notices = told(house)
    assert kinds(notices["gw/2"]) == [Attached, Sync]
    assert "b/1" not in notices
    house.desk.relay.heard("gw/2", notices["gw/2"][-1].number)
    assert kinds(told(house)["b/1"]) == [TokenCommitted]


def test_followers_of_what_is_submitted_again_hear_the_new_try_alone(house):
    house.open("d/1")
    house.desk.attach_stream("d/1", 1, "acme", house.now)
    house.step()
    told(house)
    house.desk.disconnect("gw/1", house.now)
    house.open("gw/2")
    house.desk.relay.trust("gw/2")
    house.submit(owner="gw/2", lease_s=20.0)
    asked = told(house)["gw/2"][-1]
    house.desk.relay.heard("gw/2", asked.number)
    for notices in told(house).values():
        (attached,) = notices
        assert (attached.owner_epoch, len(attached.record.choices[0].token_ids)) == (0, 0)
    house.step()
    house.desk.relay.heard("gw/2", told(house)["gw/2"][-1].number)
    assert {stream: kinds(notices) for stream, notices in told(house).items()} == {
        stream: [TokenCommitted] for stream in ("b/1", "c/1", "d/1")
    }


def test_followers_of_what_is_closed_hear_the_rest_as_it_is_billed(house):
    house.step()
    house.step()
    told(house)
    house.desk.settle("gw/1", 1, verdict(2), house.now)
    (attached,) = told(house)["b/1"]
    assert (len(attached.record.choices[0].token_ids), attached.record.verdict.output_tokens) == (2, (2,))


def test_what_is_too_large_to_be_sent_again_ends_no_followers_stream(house, monkeypatch):
    house.step()
    told(house)
    monkeypatch.setattr(desk, "MOST_ATTACHED_BYTES", house.desk.records.get(1).wire_bytes() - 1)
    house.desk.settle("gw/1", 1, verdict(2), house.now)
    assert kinds(told(house)["b/1"]) == [Settled]


def test_followers_that_have_heard_all_hear_the_verdict(house):
    house.desk.cancel(1, house.now)
    notices = told(house)["gw/1"]
    assert kinds(notices) == [ChoiceEnded, RequestEnded, Sync]
    house.desk.relay.heard("gw/1", notices[-1].number)
    told(house)
    house.desk.settle("gw/1", 1, verdict(1), house.now)
    assert kinds(told(house)["b/1"]) == [Settled]


def test_of_streams_that_are_gone_nothing_is_kept(house):
    house.step()
    told(house)
    house.now += 11
    house.desk.expire(house.now)
    house.now += 21
    house.desk.expire(house.now)
    relay = house.desk.relay
    assert not any((relay._waiting, relay._asked, relay._asking))


def test_a_stop_string_ends_a_choice_whose_last_token_came_first():
    house = House()
    house.submit(output=3, lease_s=20.0)
    for _ in range(3):
        house.step()
    told(house)
    house.desk.cancel(1, house.now, choice=0, kept_tokens=2, reason=FinishReason.STOP)
    (ended,) = told(house)["gw/1"]
    assert (ended.reason, ended.output_tokens) == (FinishReason.STOP, 2)
    choice = house.desk.records.get(1).choices[0]
    assert (len(choice.token_ids), choice.finish_reason) == (2, FinishReason.STOP)
    house.desk.detach_stream("gw/1", 1, house.now)
    house.now += 21
    _, (closing,) = house.desk.expire(house.now)
    assert (closing.verdict.finish_reason, closing.verdict.output_tokens) == (FinishReason.STOP, (2,))


def test_a_stop_of_a_choice_that_there_is_not_changes_nothing(house):
    house.desk.cancel(1, house.now, choice=1, kept_tokens=1, reason=FinishReason.STOP)
    assert told(house) == {}
