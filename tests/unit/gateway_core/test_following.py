"""What a gateway does that follows a request, and what comes to own it."""

import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.choice import NewToken
from services.gateway.core.effects import AppendOpened, Opened, Refuse
from services.gateway.core.lane_messages import Accepted, Attach, Cancel, Detach, Granted, Refused, Settle
from services.gateway.core.outcome import FinishReason
from tests.unit.gateway_core.lane_scene import Scene, attached, verdict

NOT_FOUND = ServiceError(Code.NOT_FOUND, "NOT_FOUND", "no such request")
NO_CAPACITY = ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", "no worker")


def test_a_follower_computes_the_same_text_and_says_done_exactly_as_the_owner(scene):
    scene.attach()
    assert scene.said == [Attach(7, "acme")]
    scene.attached(300, 301)
    assert [type(effect) for effect in scene.effects] == [AppendOpened, Opened]
    assert scene.last(AppendOpened).usage.owner_epoch == 0  # whoever owns it says so with a higher one
    scene.token(302)
    scene.end()
    assert not scene.owner.ended
    told = verdict(3)
    scene.hear(Settle(7, 1, told))
    assert (scene.owner.closed, scene.owner.error) == (told.closed, None)
    assert scene.reader.take(scene.now)[0].count == 3
    assert scene.closings() == []
    assert scene.kinds() == ["Attach"]


def test_an_attachment_to_a_finished_request_gets_all_of_it_at_once(scene):
    scene.attach()
    told = verdict(2, reason=FinishReason.DEADLINE)
    scene.attached(300, 301, reason=FinishReason.DEADLINE, verdict=told)
    assert (scene.owner.closed, scene.owner.error) == (told.closed, None)
    assert scene.reader.take(scene.now)[0].finish_reason is FinishReason.DEADLINE
    assert scene.book.owners == {}


def test_callers_hear_of_no_followed_request_before_its_row_is_sure():
    scene = Scene(journal=False)
    scene.attach()
    scene.attached(300)
    assert [type(effect) for effect in scene.effects] == [AppendOpened]
    scene.do("opened_failed", NO_CAPACITY)
    assert scene.last(Refuse).error is NO_CAPACITY
    assert scene.kinds() == ["Attach", "Detach"]  # the owner's, and its other followers', goes on


def test_what_a_scheduler_closed_without_knowing_of_a_stop_string_is_told_as_it_is_billed(scene):
    scene.attach()
    tokens = [*scene.ids("ab"), *scene.ids("c")]
    told = verdict(3, reason=FinishReason.LENGTH)
    scene.attached(*tokens, reason=FinishReason.LENGTH, verdict=told, stop=("b",))
    (piece,) = scene.reader.take(scene.now)
    assert (piece.count, piece.text, piece.finish_reason) == (3, "abc", FinishReason.LENGTH)
    assert scene.owner.closed.output_tokens == 3


def test_a_failure_is_told_to_followers_with_its_reason(scene):
    scene.attach()
    scene.attached(300)
    scene.hear(Settle(7, 1, verdict(1, reason=FinishReason.ERROR, error_reason="WORKER_LOST")))
    assert (scene.owner.error.code, scene.owner.error.reason) == (Code.INTERNAL, "WORKER_LOST")


def test_an_attachment_to_nothing_is_refused(scene):
    scene.attach()
    scene.hear(Refused(7, NOT_FOUND))
    assert scene.last(Refuse).error is NOT_FOUND
    assert scene.book.owners == {}


def test_a_follower_that_is_granted_the_request_closes_it_once(scene):
    scene.attach()
    scene.attached(300, stop=("b",))
    scene.grant(2)
    scene.token(301)
    scene.end()
    closing = scene.closings()
    assert [(one.usage.owner_epoch, one.closed.output_tokens) for one in closing] == [(2, 2)]
    assert (closing[0].usage.runtime_revision, closing[0].usage.opened_at) == ("r", 1000.0)
    assert scene.owner.error is None


def test_a_follower_that_is_granted_the_request_knows_when_its_first_token_came(scene):
    scene.attach()
    scene.attached()  # accepted a second ago
    scene.wait(0.5)
    scene.token(300)
    scene.wait(1.0)
    scene.grant(2)
    scene.end()
    assert scene.closings()[0].closed.ttft_ms == pytest.approx(1500)


def test_a_follower_that_is_granted_what_had_ended_already_closes_it_at_once(scene):
    scene.attach()
    scene.attached(300)
    scene.end()
    scene.grant(2)
    assert scene.closings()[0].closed.finish_reason is FinishReason.STOP


def test_a_stop_string_that_only_the_lost_owner_may_have_told_is_told_by_the_new_one(scene):
    scene.attach()
    scene.attached(*scene.ids("a"), stop=("b",))
    scene.token(*scene.ids("b"))
    assert scene.kinds() == ["Attach"]
    scene.grant(2)
    assert scene.last(Cancel).kept_tokens == 2


def test_an_attachment_that_is_granted_at_once_owns_and_watches_the_deadline(scene):
    scene.attach()
    message = attached(3, [[NewToken(300)]], deadline_s=2.0)
    scene.hear(message)
    scene.wait(2.3)
    assert scene.last(Cancel).reason is FinishReason.DEADLINE
    scene.end(FinishReason.CANCELLED)
    assert scene.closings()[0].usage.owner_epoch == 3
    assert scene.closings()[0].closed.ttft_ms == 500.0


def test_a_follower_whose_readers_left_lets_go(scene):
    scene.attach()
    scene.attached(300)
    scene.do("leave", scene.reader)
    assert scene.kinds() == ["Attach", "Detach"]
    assert scene.book.owners == {}


@pytest.mark.parametrize("answer", ["attached", "granted"])
def test_what_is_offered_when_nobody_follows_any_more_is_given_back(scene, answer):
    scene.attach()
    scene.do("leave", scene.reader)
    scene.hear(attached(2, [[]]) if answer == "attached" else Granted(7, 2))
    assert scene.said[-1] == Detach(7)


def test_an_acceptance_that_nobody_waits_for_is_cancelled_and_settled(scene):
    scene.hear(Accepted(9, 1, "r", 0.0))
    assert scene.kinds() == ["Cancel", "Settle"]
    assert scene.last(Settle).verdict.closed.billable_tokens == 0


def test_a_follower_attaches_to_the_successor_until_the_owner_has_been_there(scene):
    scene.attach()
    scene.attached(300, 301, 302, resume=True)
    scene.cut()
    scene.welcome(2)
    scene.hear(Refused(7, NOT_FOUND))
    scene.wait(0.11)
    assert scene.kinds() == ["Attach"] * 3
    scene.attached(300, 301, resume=True)  # the owner had one token less: it is drawn again
    scene.token(302, index=2)
    scene.token(303, index=3)
    piece = scene.reader.take(scene.now)[0]
    assert [record.token_id for record in piece.tokens] == [300, 301, 302, 303]


def test_a_follower_of_what_ends_with_its_scheduler_cannot_say_how(scene):
    scene.attach()
    scene.attached(300)
    scene.cut()
    scene.welcome(2)
    assert scene.owner.error.reason == "OWNERSHIP_LOST"
    assert scene.kinds() == ["Attach"]


def test_a_gateway_that_leaves_lets_its_followers_go_elsewhere(scene):
    scene.attach()
    scene.attached(300)
    scene.do("shut_down")
    assert isinstance(scene.said[-1], Detach)
    assert scene.owner.error.reason == "DRAINING"


def test_a_verdict_that_keeps_less_than_was_followed_is_what_the_whole_says(scene):
    scene.attach()
    scene.attached(300, 301)
    scene.token(302)
    scene.hear(Settle(7, 1, verdict(2, reason=FinishReason.CANCELLED)))
    assert scene.owner.choices[0].token_ids == [300, 301]
    assert scene.owner.choices[0].finish_reason is FinishReason.CANCELLED
