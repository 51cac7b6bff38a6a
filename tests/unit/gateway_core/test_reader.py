"""Readers of one request, each on its own."""

import tracemalloc

from services.gateway.core.choice import Cursor
from services.gateway.core.outcome import FinishReason
from services.gateway.core.reader import Reader
from tests.unit.gateway_core.lane_scene import Scene
from tests.unit.gateway_core.test_choice import written


def test_a_reader_that_wants_what_is_still_to_come_waits_for_it():
    choice, tokens = written("abcd")
    reader = Reader((2,))
    reader.bind([choice])
    choice.feed(tokens[:2])
    assert reader.take(0.0) == []
    choice.feed(tokens[2:])
    (piece,) = reader.take(0.0)
    assert (piece.index, piece.text, piece.text_offset) == (2, "cd", 2)


def test_a_reader_that_wants_more_than_there_will_be_gets_the_end():
    choice, tokens = written("ab")
    cursor = Cursor(choice, 7)
    choice.feed(tokens)
    assert cursor.take() is None
    choice.end(FinishReason.LENGTH)
    piece = cursor.take()
    assert (piece.index, piece.count, piece.text, piece.finish_reason) == (7, 0, "", FinishReason.LENGTH)


def test_a_verdict_that_keeps_less_text_than_a_reader_has_gives_it_the_end_and_no_text_again():
    choice, tokens = written("abSTx", ["STOP"])
    cursor = Cursor(choice)
    choice.feed(tokens)
    cursor.take()
    choice.cut(4, FinishReason.CANCELLED)
    assert choice.text == "abST"
    piece = cursor.take()
    assert (piece.index, piece.count, piece.text) == (5, 0, "")


def test_readers_who_never_read_cost_no_memory_of_their_own():
    scene = Scene()
    scene.submit(n=4)
    scene.accept()
    readers = [scene.read(max_bytes=1 << 30) for _ in range(50)]
    for reader in readers:
        reader.take(scene.now)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(100):
        for choice in range(4):
            scene.token(300, choice=choice)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    per_token = (after - before) / 400
    assert per_token < 1000  # one record a token, whoever reads: 50 copies would be 5,000 and more
    assert all(len(reader.take(scene.now)[0].tokens) == 100 for reader in readers)
