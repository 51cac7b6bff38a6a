"""The owner of one request, with scheduler, journal and readers played by the test."""

import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.choice import NewToken
from services.gateway.core.effects import AppendClosed, AppendOpened, Ended, Fault, Opened, Refuse
from services.gateway.core.lane_messages import Cancel, Refused, Settle, Step, Submit
from services.gateway.core.life import TERMINAL_WAIT_S
from services.gateway.core.outcome import FinishReason
from tests.unit.gateway_core.lane_scene import Scene

FULL = ServiceError(Code.UNAVAILABLE, "USAGE_BACKPRESSURE", "full")


@pytest.fixture
def slow():
    """A journal that the test answers for."""
    return Scene(journal=False)


def kinds(scene):
    return [type(effect) for effect in scene.effects]


def test_opened_is_durable_before_accepted_and_closed_before_done(slow):
    slow.submit()
    slow.accept()
    assert kinds(slow) == [AppendOpened]
    slow.do("opened_done")
    assert kinds(slow) == [AppendOpened, Opened]
    slow.token(300, 2)
    slow.end()
    assert slow.reader.take(slow.now)[0].count == 2
    assert kinds(slow)[2:] == [AppendClosed]
    assert slow.reader.take(slow.now) == []
    assert not slow.reader.closed
    slow.do("closed_done")
    assert kinds(slow)[3:] == [Ended]
    assert slow.reader.closed
    settled = slow.last(Settle)
    assert (settled.owner_epoch, settled.verdict.output_tokens) == (1, (2,))
    assert settled.verdict.reasons == (FinishReason.STOP,)
    assert slow.owner.closed == settled.verdict.closed == slow.closings()[0].closed


def test_an_opened_that_cannot_be_written_cancels_and_refuses(slow):
    slow.submit()
    slow.accept()
    slow.do("opened_failed", FULL)
    assert slow.last(Refuse).error is FULL
    assert slow.kinds() == ["Submit", "Cancel", "Settle"]
    assert slow.last(Settle).verdict.closed.billable_tokens == 0
    assert slow.book.owners == {}


@pytest.mark.parametrize("end", ["lost", "leave", "shut_down"])
def test_whatever_happens_between_acceptance_and_opened_there_is_one_row_in_order(slow, end):
    slow.submit()
    slow.accept()
    if end == "lost":
        slow.cut()
        slow.welcome(2)
        slow.accept(2)
    elif end == "leave":
        slow.do("leave", slow.reader)
    else:
        slow.do("shut_down")
    slow.end(FinishReason.STOP if end == "lost" else FinishReason.CANCELLED, input_tokens=0)
    assert kinds(slow) == [AppendOpened]
    slow.do("opened_done")
    slow.do("closed_done")
    assert kinds(slow) == [AppendOpened, Opened, AppendClosed, Ended]
    closing = slow.closings()[0]
    reason = {"lost": "stop", "leave": "cancelled", "shut_down": "error"}[end]
    assert (closing.closed.finish_reason.label, closing.closed.billable_tokens) == (reason, 0)
    assert closing.usage.owner_epoch == (2 if end == "lost" else 1)


def test_however_many_things_end_a_request_it_closes_once(scene):
    scene.submit(n=2)
    scene.accept()
    scene.token(300)
    scene.do("cancel")
    scene.do("leave", scene.reader)
    scene.do("cancel")
    scene.do("shut_down")
    scene.end(FinishReason.CANCELLED)
    scene.end(FinishReason.LENGTH)
    scene.cut()
    scene.do("shut_down")
    scene.wait(20)
    assert scene.kinds() == ["Submit", "Cancel", "Settle"]
    assert len(scene.closings()) == 1
    assert scene.last(Settle).verdict.output_tokens == (1, 0)
    assert scene.owner.closed.finish_reason is FinishReason.CANCELLED


def test_what_is_committed_before_a_cancel_is_heard_counts_for_all_who_follow(scene):
    scene.submit()
    scene.accept()
    scene.token(300)
    scene.do("cancel")
    scene.token(301)
    scene.end(FinishReason.CANCELLED)
    assert (scene.owner.closed.finish_reason, scene.owner.closed.output_tokens) == (FinishReason.CANCELLED, 2)


def test_a_natural_end_that_was_faster_than_the_cancel_stands(scene):
    scene.submit()
    scene.accept()
    scene.token(300)
    scene.do("cancel")
    scene.end(FinishReason.LENGTH)
    assert scene.owner.closed.finish_reason is FinishReason.LENGTH


def test_a_stop_string_ends_its_choice_at_the_scheduler_and_wins_against_length(scene):
    scene.submit(stop=("b",))
    scene.accept()
    scene.token(*scene.ids("ab"))
    cancel = scene.last(Cancel)
    assert (cancel.reason, cancel.choice, cancel.kept_tokens) == (FinishReason.STOP, 0, 2)
    scene.end(FinishReason.LENGTH)
    assert scene.owner.closed.finish_reason is FinishReason.STOP


def test_tokens_that_come_twice_or_out_of_order_are_not_counted(scene):
    scene.submit()
    scene.accept()
    for index in (0, 0, 2, 1, 1):
        scene.token(300 + index, index=index)
    assert scene.owner.choices[0].token_ids == [300, 301]


def test_without_a_terminal_message_the_owner_closes_by_itself(scene):
    scene.submit()
    scene.accept()
    scene.token(300)
    scene.do("cancel")
    scene.wait(TERMINAL_WAIT_S - 0.01)
    assert scene.closings() == []
    scene.wait(0.02)
    closed = scene.closings()[0].closed
    assert (closed.finish_reason, closed.input_tokens, closed.output_tokens) == (FinishReason.CANCELLED, 3, 1)


def test_a_caller_that_leaves_before_acceptance_leaves_one_cancelled_row(scene):
    scene.submit()
    scene.do("leave", scene.reader)
    scene.accept()
    scene.end(FinishReason.CANCELLED, input_tokens=0)
    assert kinds(scene) == [AppendOpened, Opened, AppendClosed, Ended]
    assert scene.owner.closed.billable_tokens == 0


@pytest.mark.parametrize(
    ("left_at", "reason"),
    [(9.8, FinishReason.CANCELLED), (9.9, FinishReason.DEADLINE), (10.0, FinishReason.DEADLINE)],
)
def test_leaving_at_the_deadline_is_a_deadline(scene, left_at, reason):
    scene.submit(deadline=110.0)
    scene.accept()
    scene.wait(left_at)
    scene.do("leave", scene.reader)
    assert scene.last(Cancel).reason is reason
    scene.end(FinishReason.CANCELLED)
    assert scene.owner.closed.finish_reason is reason


def test_the_owner_steps_in_when_the_scheduler_misses_the_deadline(scene):
    scene.submit(deadline=102.0)
    scene.accept()
    scene.wait(2.2)
    assert "Cancel" not in scene.kinds()
    scene.wait(0.1)
    assert scene.last(Cancel).reason is FinishReason.DEADLINE


def test_the_time_left_shrinks_with_each_submission(scene):
    scene.submit(deadline=110.0)
    scene.accept()
    scene.now += 2
    scene.cut()
    scene.welcome(2)
    first, second = [message for message in scene.said if isinstance(message, Submit)]
    assert (first.deadline_s, second.deadline_s) == (10.0, 8.0)


def test_a_refusal_after_acceptance_is_a_failure_that_bills_nothing(scene):
    scene.submit()
    scene.accept()
    scene.cut()
    scene.welcome(2)
    scene.hear(Refused(7, ServiceError(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full")))
    assert scene.owner.closed.billable_tokens == 0
    assert (scene.owner.error.code, scene.owner.error.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert scene.last(Settle).verdict.error_reason == "QUEUE_FULL"


def test_a_token_that_makes_no_sense_ends_its_request(scene):
    scene.submit()
    scene.accept()
    scene.hear(Step([7], [3], [0], [NewToken(300)]))
    assert scene.last(Fault).kind == "IndexError"
    assert scene.last(Cancel).reason is FinishReason.ERROR
    assert (scene.owner.error.reason, scene.owner.closed.billable_tokens) == ("INTERNAL", 0)


def test_a_request_whose_lease_ran_out_before_done_tells_no_end(slow):
    slow.submit()
    slow.accept()
    slow.do("opened_done")
    slow.token(300)
    slow.end()
    slow.now += 8.0  # frozen between appending `closed` and hearing that it is durable
    slow.do("closed_done")
    assert (slow.owner.error.code, slow.owner.error.reason) == (Code.UNAVAILABLE, "OWNERSHIP_LOST")
