"""When callers are told: of a request once the scheduler knows of that, of its end once it is certain."""

import pytest

from kit.errors import invalid
from services.gateway.core.choice import NewToken
from services.gateway.core.effects import Refuse
from services.gateway.core.lane_book import LaneBook
from services.gateway.core.lane_messages import (
    Cancel,
    Heartbeat,
    HeartbeatAck,
    Open,
    Refused,
    RequestEnd,
    Settle,
    Step,
    Submit,
    Sync,
    Synced,
    Welcome,
)
from services.gateway.core.life import TERMINAL_WAIT_S
from services.gateway.core.outcome import Closed, FinishReason, Verdict, void
from tests.unit.gateway_core.lane_scene import LEASE_S, Scene


def test_however_long_a_scheduler_took_to_welcome_us_its_lease_is_a_whole_one():
    book = LaneBook("g")
    book.hello(100.0)
    book.welcome(Welcome(1, LEASE_S), 107.0)
    first = book.next_message(107.0)
    assert first == Heartbeat(1)
    book.hear(HeartbeatAck(1), 107.1)
    assert book.lease.held(114.0)


def quiet():
    """A scene in which nobody answers `open`."""
    scene = Scene()
    scene.opening = False
    scene.submit()
    scene.accept()
    return scene


def told(output=1):
    closed = Closed(FinishReason.LENGTH, 3, 0, output, 3 + output, 0.0, 0.0, 0.0)
    return Verdict(closed, (output,), (FinishReason.LENGTH,))


def kinds(scene):
    return [type(effect).__name__ for effect in scene.effects]


def test_callers_are_told_once_the_scheduler_is_proven_to_know():
    scene = quiet()
    assert scene.opens == [Open(7, 1)]
    assert kinds(scene) == ["AppendOpened"]
    scene.wait(4.0)
    assert kinds(scene) == ["AppendOpened", "Opened"]


def test_on_another_stream_the_scheduler_is_told_again_and_callers_once():
    scene = quiet()
    scene.cut()
    scene.welcome(1)
    scene.attached(epoch=2)
    assert scene.opens == [Open(7, 1), Open(7, 2)]
    scene.wait(4.0)
    assert kinds(scene).count("Opened") == 1


def test_another_scheduler_is_told_that_callers_were_told():
    scene = Scene()
    scene.submit()
    scene.accept()
    scene.cut()
    scene.welcome(2)
    assert scene.last(Submit).opened
    scene = quiet()
    scene.cut()
    scene.welcome(2)
    assert not scene.last(Submit).opened
    scene.accept(2)
    assert scene.opens == [Open(7, 1), Open(7, 2)]


def test_without_a_scheduler_nobody_was_told_and_the_row_bills_nothing():
    scene = quiet()
    scene.token(300)
    scene.cut()
    scene.wait(5.1)
    assert kinds(scene) == ["AppendOpened", "AppendClosed", "Refuse"]
    assert scene.last(Refuse).error.reason == "OWNERSHIP_LOST"  # its word may be heard yet
    (closing,) = scene.closings()
    assert (closing.closed.output_tokens, closing.closed.billable_tokens) == (0, 0)
    assert scene.book.owners == {}


def test_a_request_that_was_closed_in_our_place_before_anybody_was_told_is_refused():
    for verdict, reason in ((void(1), "NO_CAPACITY"), (told(), "OWNERSHIP_LOST")):
        scene = quiet()
        scene.cut()
        scene.welcome(1)
        scene.attached(verdict=verdict)
        assert kinds(scene) == ["AppendOpened", "Refuse"]
        assert scene.last(Refuse).error.reason == reason


def test_what_was_not_even_announced_is_given_up_for_good():
    scene = Scene(journal=False)
    scene.submit()
    scene.accept()
    scene.cut()
    scene.wait(5.1)
    scene.do("opened_done")
    scene.do("closed_done")
    assert scene.opens == []
    assert scene.last(Refuse).error.reason == "NO_CAPACITY"


def test_a_first_try_that_was_accepted_after_all_is_no_fault_of_the_callers():
    scene = Scene()
    scene.submit()
    scene.hear(Refused(7, invalid("request_id", "must be a fresh positive number")))
    assert scene.last(Refuse).error.reason == "NO_CAPACITY"


def test_without_the_lease_the_verdict_is_left_to_the_next_owner():
    scene = Scene(journal=False)
    scene.submit()
    scene.accept()
    scene.do("opened_done")
    scene.token(300)
    scene.end()
    scene.now += LEASE_S
    scene.do("closed_done")
    assert scene.kinds() == ["Submit", "Detach"]
    assert scene.owner.error.reason == "OWNERSHIP_LOST"


def test_a_stop_string_is_told_once_the_scheduler_knows_of_it():
    scene = Scene()
    scene.submit(stop=("b",), n=2)
    scene.accept()
    scene.token(*scene.ids("ab"))
    assert scene.last(Cancel).kept_tokens == 2
    (piece,) = scene.reader.take(scene.now)
    assert (piece.count, piece.finish_reason) == (1, None)
    scene.end_choice(FinishReason.STOP, count=2)
    (piece,) = scene.reader.take(scene.now)
    assert (piece.count, piece.text, piece.finish_reason) == (1, "", FinishReason.STOP)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_an_end_beyond_a_stop_string_says_nothing_of_it(reason):
    scene = Scene()
    scene.submit(stop=("b",), n=2)
    scene.accept()
    scene.token(*scene.ids("ab"), 300)
    scene.end_choice(reason, count=3)
    (piece,) = scene.reader.take(scene.now)
    assert (piece.count, piece.finish_reason) == (1, None)
    scene.end_choice(FinishReason.STOP, count=2)  # our cancel was heard
    (piece,) = scene.reader.take(scene.now)
    assert (piece.count, piece.finish_reason) == (1, FinishReason.STOP)


def test_a_stop_string_found_before_a_scheduler_fell_is_known_to_its_successor():
    scene = Scene()
    scene.submit(stop=("b",), n=2, resume=True, resume_lease_s=5.0)
    scene.accept()
    scene.token(*scene.ids("ab"))
    scene.reader.take(scene.now)
    scene.cut()
    scene.welcome(2)
    assert scene.last(Submit).output[0].reason is FinishReason.STOP
    woken = []
    scene.reader.wake = lambda: woken.append(scene.reader)
    scene.accept()
    assert woken
    (piece,) = scene.reader.take(scene.now)
    assert (piece.count, piece.finish_reason) == (1, FinishReason.STOP)


def test_a_gateway_says_what_it_has_heard_but_not_while_it_closes_without_the_schedulers_word():
    scene = Scene()
    scene.submit()
    scene.accept()
    scene.token(300)
    scene.hear(Sync(1))
    assert scene.last(Synced) == Synced(1)
    scene.journal = False
    scene.do("cancel")
    scene.wait(TERMINAL_WAIT_S + 0.1)
    scene.token(301)
    scene.hear(Sync(2))
    assert scene.last(Synced) == Synced(1)
    scene.do("closed_done")
    assert scene.kinds()[-2:] == ["Settle", "Synced"]
    assert scene.last(Synced) == Synced(2)


def test_the_word_that_one_stream_waited_for_is_not_given_on_the_next():
    scene = Scene()
    scene.submit(resume=True, resume_lease_s=60.0)
    scene.accept()
    scene.token(300)
    scene.journal = False
    scene.do("cancel")
    scene.wait(TERMINAL_WAIT_S + 0.1)
    scene.hear(Sync(1))
    scene.cut()
    scene.welcome(1)
    scene.do("closed_done")
    assert scene.owner.ended
    assert "Synced" not in scene.kinds()


def test_an_end_of_our_own_is_told_once_it_is_certain():
    scene = Scene(resubmit_s=1.0)
    scene.submit(stop=("zz",))
    scene.accept()
    scene.token(*scene.ids("z"))
    scene.cut()
    scene.wait(1.1)  # no scheduler came back: it ends here, and may have gone on there
    assert scene.owner.error.reason == "OWNERSHIP_LOST"
    (piece,) = scene.reader.take(scene.now)
    assert (piece.text, piece.finish_reason) == ("", None)


def test_a_verdict_that_is_not_what_readers_had_is_not_told_as_done():
    scene = Scene()
    scene.submit(stop=("b",))
    scene.accept()
    scene.token(*scene.ids("ab"))
    scene.reader.take(scene.now)
    scene.cut()
    scene.welcome(1)
    scene.attached(*scene.ids("ab"), *scene.ids("c"), verdict=told(3))
    assert scene.owner.error.reason == "OWNERSHIP_LOST"


LATE = {
    "a step": lambda scene: scene.hear(Step([7], [0], [1], [NewToken(301)])),
    "the end of a choice": lambda scene: scene.end_choice(count=1),
    "the end": lambda scene: scene.hear(Step(request_ends=[RequestEnd(7, 3, 0, 0.001)])),
    "a grant": lambda scene: scene.grant(2),
    "a verdict": lambda scene: scene.hear(Settle(7, 1, told(1))),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_what_an_earlier_attachment_is_still_told_does_not_reach_the_next_one(late):
    scene = Scene()
    scene.attach()
    scene.attached(300)
    scene.do("leave", scene.reader)
    scene.attach()
    late(scene)
    assert (scene.owner.ended, scene.owner.owning) == (False, False)
    scene.attached(300, 301)
    scene.token(302)
    (piece,) = scene.reader.take(scene.now)
    assert [record.token_id for record in piece.tokens] == [300, 301, 302]
