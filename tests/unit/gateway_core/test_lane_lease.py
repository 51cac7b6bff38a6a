"""A lane whose lease is, or is not, renewed."""

import pytest

from services.gateway.core.lane_messages import Heartbeat, HeartbeatAck
from services.gateway.core.lease import LaneLostError


def test_a_process_that_slept_past_its_lease_delivers_nothing_late(running):
    running.now += 8.1
    with pytest.raises(LaneLostError):
        running.token(302)
    assert running.owner.choices[0].token_ids == [300, 301]


def test_writing_renews_nothing_only_an_answer_does(running):
    running.wait(7, heard=False)
    assert running.book.lease.held(running.now)
    running.wait(1.1, heard=False)
    assert not running.book.lease.held(running.now)


def test_heartbeats_that_are_answered_keep_the_lease(running):
    running.wait(60)
    assert running.book.lease.held(running.now)
    running.end()
    assert running.owner.error is None


def test_a_heartbeat_leaves_every_third_of_the_lease(scene):
    sent = []
    assert scene.book.next_timer() == pytest.approx(100.0 + 10.0 / 3)
    for _ in range(3):
        scene.now = scene.book.next_timer()
        scene.book.tick(scene.now)
        sent.append((scene.now, scene.book.next_message(scene.now)))
        scene.book.hear(HeartbeatAck(len(sent) + 1), scene.now)
    assert [message for _, message in sent] == [Heartbeat(2), Heartbeat(3), Heartbeat(4)]
    assert sent[2][0] == pytest.approx(110.0)
