"""Who reads what an owner has, when they leave, and when the gateway itself leaves."""

import pytest

from services.gateway.core.effects import TurnAway
from services.gateway.core.lane_messages import Cancel, Detach
from services.gateway.core.outcome import FinishReason


def test_without_key_or_resume_the_last_reader_that_leaves_ends_the_request(scene):
    scene.submit()
    scene.accept()
    other = scene.read()
    scene.do("leave", scene.reader)
    assert "Cancel" not in scene.kinds()
    scene.do("leave", other)
    assert scene.last(Cancel).reason is FinishReason.CANCELLED


def test_with_a_resume_lease_it_runs_on_for_so_long_and_a_reader_who_comes_stops_the_clock(scene):
    scene.submit(resume_lease_s=30.0)
    scene.accept()
    scene.do("leave", scene.reader)
    scene.wait(29)
    other = scene.read()
    scene.wait(29)
    scene.do("leave", other)
    scene.wait(29)
    assert "Cancel" not in scene.kinds()
    scene.wait(2)
    assert scene.last(Cancel).reason is FinishReason.CANCELLED


def test_a_reader_gets_all_that_waited_as_one_piece_and_another_starts_where_it_wants(scene):
    scene.submit(n=2)
    scene.accept()
    scene.token(300, 301)
    scene.token(300, choice=1)
    late, each = scene.read(1), scene.read(2, 0)
    places = [[(p.choice, p.index, p.count) for p in r.take(scene.now)] for r in (scene.reader, late, each)]
    assert places == [[(0, 0, 2), (1, 0, 1)], [(0, 1, 1)], [(1, 0, 1)]]
    scene.token(302)
    assert [[p.index for p in r.take(scene.now)] for r in (scene.reader, late, each)] == [[2], [2], [2]]


def test_only_what_is_unread_counts_against_a_reader_and_only_against_that_one(scene):
    scene.submit()
    scene.accept()
    scene.reader = None
    slow, fast = scene.read(max_bytes=300), scene.read(max_bytes=300)
    for _ in range(20):  # nobody has read yet: a caller that wants the whole is no slow reader
        scene.token(300)
    assert not any(isinstance(effect, TurnAway) for effect in scene.effects)
    slow.take(scene.now)
    for _ in range(20):
        fast.take(scene.now)
        scene.token(300)
    assert [effect.reader for effect in scene.effects if isinstance(effect, TurnAway)] == [slow]
    assert (slow.left, fast.left) == (True, False)
    assert "Cancel" not in scene.kinds()


def test_a_reader_that_reads_nothing_for_too_long_is_turned_away(scene):
    scene.submit()
    scene.accept()
    scene.reader.take(scene.now)
    scene.token(300)
    scene.wait(29)
    scene.do("check_readers")
    assert not any(isinstance(effect, TurnAway) for effect in scene.effects)
    scene.wait(2)
    scene.do("check_readers")
    assert scene.last(TurnAway).reader is scene.reader
    assert scene.last(Cancel).reason is FinishReason.CANCELLED


# Shut-down


@pytest.mark.parametrize(("tokens", "reason"), [(0, FinishReason.ERROR), (1, FinishReason.INCOMPLETE)])
def test_a_gateway_that_leaves_ends_what_nobody_may_go_on_with(scene, tokens, reason):
    scene.submit()
    scene.accept()
    scene.token(*[300] * tokens)
    scene.do("shut_down")
    scene.end(FinishReason.CANCELLED)
    assert scene.owner.closed.finish_reason is reason
    assert (scene.owner.error is None) == bool(tokens)


def test_a_gateway_that_leaves_hands_over_what_can_be_resumed(scene):
    scene.submit(resume_lease_s=30.0)
    scene.accept()
    scene.token(300)
    scene.do("shut_down")
    assert scene.last(Detach).request_id == 7
    assert scene.closings() == []
    assert scene.owner.error.reason == "DRAINING"
    assert [piece.count for piece in scene.reader.take(scene.now)] == [1]
    assert scene.reader.closed
