"""What a gateway says when the way to the scheduler, or the scheduler, is lost, and when others take over."""

import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.choice import NewToken
from services.gateway.core.effects import AppendClosed, AppendOpened, Ended, Opened, Refuse
from services.gateway.core.lane_messages import Attach, Refused, RequestEnd, Settle, Step, Submit
from services.gateway.core.outcome import FinishReason
from tests.unit.gateway_core.lane_scene import Scene, attached, verdict

NOT_FOUND = ServiceError(Code.NOT_FOUND, "NOT_FOUND", "no such request")
NO_CAPACITY = ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", "no worker")
IN_USE = ServiceError(Code.INVALID_ARGUMENT, "INVALID_REQUEST", "in use", "request_id")


# The stream is lost, the scheduler is not


def test_a_stream_that_breaks_costs_a_delay_and_no_token(running):
    running.cut()
    assert not running.owner.over
    running.welcome(1)
    assert running.last(Attach) == Attach(7, "acme", 1)
    running.attached(300, 301, 302, epoch=2)
    running.token(303)
    running.end()
    piece = running.reader.take(running.now)[0]
    assert [record.token_id for record in piece.tokens] == [300, 301, 302, 303]
    closing = running.closings()
    assert [(one.usage.owner_epoch, one.closed.output_tokens) for one in closing] == [(2, 4)]
    assert running.owner.error is None


def test_what_ended_while_the_stream_was_broken_is_closed_with_what_the_scheduler_knows(running):
    running.cut()
    running.welcome(1)
    running.attached(300, 301, 302, epoch=2, reason=FinishReason.LENGTH, end=RequestEnd(7, 3, 2, 0.001))
    closed = running.closings()[0].closed
    assert (closed.finish_reason, closed.output_tokens, closed.cached_tokens) == (FinishReason.LENGTH, 3, 2)
    assert running.last(Settle).owner_epoch == 2


def test_what_was_never_answered_is_submitted_again(scene):
    scene.submit()
    scene.cut()
    scene.welcome(1)
    assert scene.kinds() == ["Submit", "Submit"]


def test_what_must_be_heard_is_said_again_until_its_arrival_is_proven(running):
    running.do("cancel")
    running.cut()
    running.welcome(1)
    assert running.kinds() == ["Submit", "Cancel", "Cancel", "Attach"]
    running.wait(4)  # a heartbeat behind it is answered
    running.cut()
    running.welcome(1)
    assert running.kinds()[4:] == ["Attach"]


def test_what_was_let_go_and_is_wanted_again_is_not_let_go_on_the_next_stream(scene):
    scene.attach()
    scene.attached(300)
    scene.do("leave", scene.reader)
    scene.attach()
    scene.attached(300, epoch=2)
    scene.cut()
    scene.welcome(1)
    assert scene.kinds() == ["Attach", "Detach", "Attach", "Attach"]


def test_a_settlement_that_was_lost_is_said_again(running):
    running.end()
    running.wait(4, heard=False)
    running.cut()
    running.welcome(1)
    assert running.kinds() == ["Submit", "Settle", "Settle"]


def test_a_pending_cancel_and_an_unheard_stop_are_repeated_by_the_new_ownership(scene):
    scene.submit(stop=("b",), n=2)
    scene.accept()
    scene.token(*scene.ids("ab"))
    scene.do("cancel")
    scene.wait(4)
    scene.cut()
    scene.welcome(1)
    said = len(scene.said)
    scene.hear(attached(2, [[NewToken(i) for i in scene.ids("ab")], []]))
    cancels = [(m.choice, m.reason) for m in scene.said[said:]]
    assert cancels == [(0, FinishReason.STOP), (None, FinishReason.CANCELLED)]


def test_a_record_of_more_choices_than_were_asked_for_ends_that_request_and_no_other(running):
    running.cut()
    running.welcome(1)
    running.hear(attached(2, [[], [NewToken(300)], []]))
    assert running.owner.error.code is Code.INTERNAL
    assert running.book.connected


def test_a_gateway_that_lost_its_ownership_follows_and_says_done_from_the_others_verdict(running):
    running.cut()
    running.welcome(1)
    running.attached(300, 301, 302)
    running.token(303)
    running.end_choice()
    running.hear(Step(request_ends=[RequestEnd(7, 3, 0, 0.0)]))
    assert running.closings() == []
    running.hear(Settle(7, 2, verdict(4)))
    assert running.owner.closed == verdict(4).closed
    assert running.owner.error is None
    assert running.closings() == []


def test_closing_on_an_ownership_that_was_renewed_meanwhile_closes_under_the_new_one():
    scene = Scene(journal=False)
    scene.submit()
    scene.accept()
    scene.do("opened_done")
    scene.token(300)
    scene.end()
    scene.cut()
    scene.welcome(1)
    scene.attached(300, epoch=2, reason=FinishReason.STOP, end=RequestEnd(7, 3, 0, 0.0))
    scene.do("closed_done")
    assert Ended not in [type(effect) for effect in scene.effects]
    scene.do("closed_done")
    assert [one.usage.owner_epoch for one in scene.closings()] == [1, 2]
    assert scene.closings()[0].closed == scene.closings()[1].closed
    assert scene.last(Settle).owner_epoch == 2


def test_an_owner_that_the_scheduler_has_forgotten_tells_no_end(running):
    running.cut()
    running.now += 9
    running.welcome(1)
    running.hear(Refused(7, NOT_FOUND))
    assert len(running.closings()) == 1  # stands if nobody else closed
    assert running.owner.error.reason == "OWNERSHIP_LOST"


# The scheduler is lost


def test_what_has_no_token_is_submitted_again_under_its_id(scene):
    scene.submit()
    scene.accept()
    scene.cut()
    scene.welcome(2)
    again = scene.last(Submit)
    assert (again.order.request_id, again.owner_epoch, again.output) == (7, 1, ())
    scene.accept(2)
    scene.token(300)
    scene.end()
    assert scene.closings()[0].usage.owner_epoch == 2
    assert [type(effect) for effect in scene.effects] == [AppendOpened, Opened, AppendClosed, Ended]


def test_what_has_tokens_ends_incomplete(running):
    running.cut()
    running.welcome(2)
    assert running.closings()[0].closed.finish_reason is FinishReason.INCOMPLETE
    assert running.owner.error is None
    assert running.kinds() == ["Submit", "Settle"]


def test_what_may_be_resumed_goes_on_from_its_output_and_ended_choices_stay_ended(scene):
    scene.submit(n=2, stop=("b",), resume=True, resume_lease_s=30.0)
    scene.accept()
    scene.token(*scene.ids("ab"), 300)
    scene.token(300, 301, choice=1)
    scene.cut()
    scene.welcome(2)
    first, second = scene.last(Submit).output
    assert [token.token_id for token in first.tokens] == scene.ids("ab")
    assert (first.reason, second.reason) == (FinishReason.STOP, None)
    assert [token.token_id for token in second.tokens] == [300, 301]
    scene.accept(2)
    scene.token(302, choice=1)
    scene.end(FinishReason.LENGTH)
    settled = scene.last(Settle).verdict
    assert settled.output_tokens == (2, 3)
    assert settled.reasons == (FinishReason.STOP, FinishReason.LENGTH)


def test_with_all_choices_ended_only_the_terminal_message_was_missing(running):
    running.end_choice(FinishReason.LENGTH)
    running.cut()
    running.welcome(2)
    closed = running.closings()[0].closed
    assert (closed.finish_reason, closed.input_tokens) == (FinishReason.LENGTH, 3)


def test_a_scheduler_that_is_back_before_its_workers_is_asked_for_a_while(scene):
    scene.submit()
    scene.accept()
    scene.cut()
    scene.welcome(2)
    for _ in range(3):
        scene.hear(Refused(7, NO_CAPACITY))
        scene.wait(0.5)
    assert scene.kinds() == ["Submit"] * 5
    scene.wait(5)
    scene.hear(Refused(7, NO_CAPACITY))
    assert (scene.owner.error.reason, scene.owner.closed.billable_tokens) == ("NO_CAPACITY", 0)


def test_a_new_request_is_refused_at_once(scene):
    scene.submit()
    scene.hear(Refused(7, NO_CAPACITY))
    assert scene.last(Refuse).error is NO_CAPACITY


@pytest.mark.parametrize(("tokens", "reason"), [(0, FinishReason.ERROR), (2, FinishReason.INCOMPLETE)])
def test_without_a_scheduler_in_time_the_request_ends(scene, tokens, reason):
    scene.submit(resume=True)
    scene.accept()
    scene.token(*[300] * tokens)
    scene.cut()
    scene.wait(5.1)
    assert scene.closings()[0].closed.finish_reason is reason
    # With tokens, a scheduler that lives on out of reach will bill what it has.
    assert scene.owner.error.reason == ("OWNERSHIP_LOST" if tokens else "NO_CAPACITY")


def test_without_a_scheduler_nothing_is_taken(scene):
    scene.cut()
    with pytest.raises(ServiceError, match="no scheduler"):
        scene.submit()
    with pytest.raises(ServiceError, match="no scheduler"):
        scene.attach()


def test_a_cancel_while_the_scheduler_is_away_ends_at_once_what_nobody_has_seen(scene):
    scene.submit()
    scene.accept()
    scene.cut()
    scene.do("cancel")
    assert scene.closings()[0].closed.finish_reason is FinishReason.CANCELLED
    scene.welcome(2)
    assert scene.kinds() == ["Submit", "Cancel", "Settle"]


def test_a_caller_that_leaves_while_the_scheduler_is_away_and_unanswered_leaves_nothing(scene):
    scene.submit()
    scene.cut()
    scene.do("leave", scene.reader)
    assert scene.last(Refuse).error.reason == "CANCELLED"
    assert scene.book.owners == {}


def test_of_what_was_granted_to_another_meanwhile_we_follow_that_one(scene):
    scene.submit()
    scene.accept()
    scene.cut()
    scene.wait(4.9)
    scene.now += 4
    scene.welcome(2)
    assert scene.last(Submit).owner_epoch == 2  # without a lease another may hold the next one
    scene.hear(Refused(7, IN_USE))
    assert isinstance(scene.said[-1], Attach)
    scene.attached(300)
    scene.hear(Settle(7, 2, verdict(1)))
    assert scene.owner.closed == verdict(1).closed
    assert scene.closings() == []
