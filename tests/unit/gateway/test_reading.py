"""How what a reader gets reaches its client: by whoever brings the news, or by the client's own task."""

import asyncio

import pytest

from services.gateway.app.reading import Reading, Turn
from services.gateway.core.outcome import FinishReason
from services.gateway.core.reader import Reader
from tests.unit.gateway_core.test_choice import written


class Outlet:
    """A client that takes what is put, as long as the way is clear."""

    def __init__(self):
        self.clear = True
        self.put_texts, self.written_texts = [], []
        self.let_go = asyncio.Event()
        self.fails = False

    def put(self, pieces):
        if self.fails:
            raise ValueError("cannot be said")
        self.put_texts += [piece.text for piece in pieces]

    async def write(self, pieces):
        self.written_texts += [piece.text for piece in pieces]
        if not self.clear:
            await self.let_go.wait()


class Scene:
    """One choice of one request, and a client whose task is parked after its first token."""

    def __init__(self, text, turn):
        self.choice, self._tokens = written(text)
        self.reader = Reader((0,))
        self.reader.bind([self.choice])
        self.outlet = Outlet()
        self.task = asyncio.create_task(
            Reading(None, self.reader, None, asyncio.Event(), turn).relay(self.outlet)
        )

    def hear(self):
        self.choice.feed([self._tokens.pop(0)])
        self.reader.offer(self.choice.records[-1], 0.0)

    def end(self):
        self.choice.end(FinishReason.STOP)
        self.reader.close(0.0)


@pytest.fixture
async def scenes():
    turn = Turn()
    found = [Scene("abcdef", turn) for _ in range(3)]
    for scene in found:
        scene.hear()
    await settle()
    assert all(scene.outlet.written_texts == ["a"] for scene in found)
    yield found
    for scene in found:
        scene.task.cancel()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_keeps_up_is_written_to_in_the_turn_of_the_news(scenes):
    for scene in scenes:
        scene.hear()
        scene.hear()
    assert not any(scene.outlet.put_texts for scene in scenes)  # not while the step is being heard
    await asyncio.sleep(0)
    assert [scene.outlet.put_texts for scene in scenes] == [["bc"]] * 3


async def test_who_does_not_keep_up_is_left_to_its_task_and_then_written_to_again(scenes):
    slow, quick, _ = scenes
    slow.outlet.clear = False
    slow.hear()
    await settle()
    slow.hear()
    slow.hear()
    quick.hear()
    await settle()
    assert (quick.outlet.put_texts, slow.outlet.put_texts) == (["b"], [])
    assert slow.outlet.written_texts == ["a", "b"]
    slow.outlet.clear = True
    slow.outlet.let_go.set()
    await settle()
    assert slow.outlet.written_texts == ["a", "b", "cd"]
    slow.hear()
    await settle()
    assert slow.outlet.put_texts == ["e"]


async def test_nothing_overtakes_what_a_task_is_still_writing(scenes):
    scene = scenes[0]
    scene.outlet.clear = False
    scene.hear()
    await settle()
    scene.outlet.clear = True  # its buffer is empty, its task has yet to hear of it
    scene.hear()
    await settle()
    assert scene.outlet.put_texts == []
    scene.outlet.let_go.set()
    await settle()
    assert scene.outlet.written_texts == ["a", "b", "c"]


async def test_one_readers_fault_is_its_own_tasks_to_raise(scenes):
    faulty, well, _ = scenes
    faulty.outlet.fails = True
    faulty.hear()
    well.hear()
    with pytest.raises(ValueError, match="cannot be said"):
        await faulty.task
    assert well.outlet.put_texts == ["b"]


async def test_the_end_ends_the_task_with_all_said_once(scenes):
    scene = scenes[0]
    scene.hear()
    scene.end()
    await scene.task
    said = "".join(scene.outlet.written_texts + scene.outlet.put_texts)
    assert said == "ab"
