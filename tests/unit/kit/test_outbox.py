import asyncio
import os

import pytest

from kit.outbox import Outbox, OutboxFull


class Store:
    """A JetStream that can be away, fail on one event, or lose its answer."""

    def __init__(self):
        self.events: dict[str, tuple[str, bytes]] = {}
        self.calls = 0
        self.failing: set[str] = set()
        self.answer_lost = False

    async def publish_all(self, events):
        self.calls += 1
        stored = [event for event in events if event.msg_id not in self.failing]
        for event in stored:
            self.events.setdefault(event.msg_id, (event.subject, event.payload))
        lost = ConnectionError("answer lost")
        return [None if event in stored and not self.answer_lost else lost for event in events]


def outbox_at(tmp_path, **limits) -> Outbox:
    outbox = Outbox(tmp_path / "outbox", **limits)
    outbox.open()
    return outbox


async def drained(outbox, store):
    stop = asyncio.Event()
    stop.set()
    await outbox.drain(store, stop)


async def test_events_survive_the_process_and_are_published_in_order(tmp_path):
    outbox = outbox_at(tmp_path)
    for i in range(5):
        await outbox.append("usage.v1.opened.t", f"id-{i}", b"payload %d" % i)
    outbox.close()
    outbox, store = outbox_at(tmp_path), Store()
    assert outbox.pending == 5
    assert outbox.oldest_age_s >= 0
    await drained(outbox, store)
    assert list(store.events.items()) == [
        (f"id-{i}", ("usage.v1.opened.t", b"payload %d" % i)) for i in range(5)
    ]
    assert (outbox.pending, outbox.pending_bytes, outbox.oldest_age_s) == (0, 0, 0.0)
    outbox.close()
    assert outbox_at(tmp_path).pending == 0


async def test_a_crash_between_publish_and_cursor_repeats_the_same_id(tmp_path):
    outbox, store = outbox_at(tmp_path), Store()
    await outbox.append("s", "id", b"x")
    store.answer_lost = True
    await drained(outbox, store)
    outbox.close()
    store.answer_lost = False
    outbox = outbox_at(tmp_path)
    await drained(outbox, store)
    assert store.calls == 2
    assert list(store.events) == ["id"]


async def test_a_full_outbox_refuses_and_takes_again_once_published(tmp_path):
    outbox, store = outbox_at(tmp_path, max_bytes=300), Store()

    async def fill():
        for i in range(100):
            await outbox.append("s", f"id-{i}", b"x" * 50)

    with pytest.raises(OutboxFull) as refusal:
        await fill()
    assert refusal.value.reason == "USAGE_BACKPRESSURE"
    assert refusal.value.retry_after_ms
    assert 0 < outbox.pending < 100
    await drained(outbox, store)
    await outbox.append("s", "after", b"x" * 50)


async def test_appends_that_wait_share_one_fsync(tmp_path, monkeypatch):
    outbox, syncs = outbox_at(tmp_path), []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (syncs.append(file), fdatasync(file)))
    await asyncio.gather(*(outbox.append("s", f"id-{i}", b"x") for i in range(200)))
    assert outbox.pending == 200
    assert len(syncs) <= 3


async def test_append_returns_only_after_the_fsync(tmp_path, monkeypatch):
    outbox, durable = outbox_at(tmp_path), []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (fdatasync(file), durable.append(True)))
    await outbox.append("s", "id", b"x")
    assert durable


async def test_a_full_disk_refuses_the_event_and_the_outbox_goes_on(tmp_path, monkeypatch):
    outbox, store = outbox_at(tmp_path), Store()

    def full(_file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", full)
        with pytest.raises(OutboxFull, match="No space left"):
            await outbox.append("s", "refused", b"x")
    assert outbox.pending_bytes == 0
    await outbox.append("s", "kept", b"x")
    await drained(outbox, store)
    assert list(store.events) == ["kept"]


async def test_one_event_that_fails_keeps_the_later_ones_until_it_is_stored(tmp_path):
    outbox, store = outbox_at(tmp_path), Store()
    for i in range(3):
        await outbox.append("s", f"id-{i}", b"x")
    store.failing = {"id-1"}
    await drained(outbox, store)
    assert outbox.pending == 2
    store.failing = set()
    await drained(outbox, store)
    assert set(store.events) == {"id-0", "id-1", "id-2"}


async def test_a_running_drain_retries_until_the_store_is_back(tmp_path, eventually):
    outbox, store, stop = outbox_at(tmp_path), Store(), asyncio.Event()
    store.failing = {"id"}
    task = asyncio.create_task(outbox.drain(store, stop))
    await outbox.append("s", "id", b"x")
    await eventually(lambda: store.calls >= 2)
    store.failing = set()
    await eventually(lambda: outbox.pending == 0)
    stop.set()
    await task


async def test_a_cancelled_append_does_not_stop_the_others(tmp_path):
    outbox = outbox_at(tmp_path)
    first = asyncio.create_task(outbox.append("s", "first", b"x"))
    second = asyncio.create_task(outbox.append("s", "second", b"x"))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert outbox.pending == 2
