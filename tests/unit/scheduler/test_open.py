"""A request of which nobody was told yet: nobody can follow it, and its owner's loss bills nothing."""

import pytest

from kit.errors import Code, ServiceError
from services.scheduler.core.messages import FinishReason, Request
from services.scheduler.core.notices import Attached
from services.scheduler.core.records import Order
from tests.unit.scheduler.test_desk import House


@pytest.fixture
def house():
    """Request 1 of gateway `gw` has a token, and may outlive its owner for 20 s; nobody was told of it."""
    house = House()
    house.open("b/1")
    order = Order(1, "acme", "m@1", "tok", "rev", 3, b"", house.now, 1e9, resume_lease_s=20.0, opened=False)
    house.desk.submit("gw/1", Request(1, "acme", (1, 2, 3), 8), order, house.now)
    house.step()
    house.desk.effects(house.now)
    return house


def lose_owner(house):
    house.now += 11
    house.open("b/1")
    return house.desk.expire(house.now)[1]


def follow(house, stream="b/1", above=0):
    house.desk.attach_stream(stream, 1, "acme", house.now, above=above)
    return house.desk.effects(house.now)[stream][0]


def test_nobody_can_follow_it(house):
    with pytest.raises(ServiceError) as refusal:
        follow(house)
    assert refusal.value.code is Code.NOT_FOUND


def test_a_new_process_of_its_gateway_knows_nothing_of_it_either(house):
    house.open("gw/2")
    with pytest.raises(ServiceError):
        follow(house, "gw/2")


def test_its_owner_comes_back_to_it_on_another_stream(house):
    house.open("gw/2")
    notice = follow(house, "gw/2", above=1)
    assert isinstance(notice, Attached)
    assert notice.owner_epoch == 2


def test_without_its_owner_it_ends_at_once_and_bills_nothing(house):
    (closing,) = lose_owner(house)
    verdict = closing.verdict
    assert (verdict.finish_reason, verdict.error_reason) == (FinishReason.ERROR, "NEVER_OPENED")
    assert (verdict.input_tokens, verdict.output_tokens, verdict.owner_epoch) == (0, (0,), 2)
    assert follow(house).record.verdict is verdict


def test_once_callers_are_told_it_can_be_followed_and_waits_for_an_owner(house):
    house.desk.open("gw/1", 1, 1)
    assert follow(house).owner_epoch == 0
    house.desk.detach_stream("b/1", 1, house.now)
    assert lose_owner(house) == []
    assert house.desk.ownership.orphans == [1]


@pytest.mark.parametrize(("stream", "epoch"), [("b/1", 1), ("gw/1", 2)])
def test_the_word_of_another_gateway_or_of_a_stale_ownership_changes_nothing(house, stream, epoch):
    house.desk.open(stream, 1, epoch)
    house.desk.open("gw/1", 99, 1)
    with pytest.raises(ServiceError):
        follow(house)
