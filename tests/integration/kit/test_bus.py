import asyncio
import contextlib
import math
import time
import uuid

import pytest

from kit import lifecycle
from kit.backlog import Event
from kit.bus import Bus, BusError, KvView
from kit.kv import last_events
from kit.outbox import Outbox


@pytest.fixture
def name():
    return f"t{uuid.uuid4().hex[:8]}"


@contextlib.asynccontextmanager
async def running(coroutine):
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        await lifecycle.end(task)
        assert task.cancelled(), task.exception()


@pytest.fixture
async def stream(bus, name):
    await bus.ensure_stream(name, [f"{name}.>"], max_age_s=3600)
    return name


async def test_a_repeated_msg_id_is_stored_once(bus, stream):
    for _ in range(3):
        await bus.publish(f"{stream}.a", b"x", msg_id="same")
    assert (await bus.js.stream_info(stream)).state.messages == 1


def events(stream, *ids, size=100):
    return [Event(0, f"{stream}.{msg_id}", msg_id, b"x" * size) for msg_id in ids]


async def stored(bus, stream):
    count = (await bus.js.stream_info(stream)).state.messages
    return [await bus.js.get_msg(stream, seq) for seq in range(1, count + 1)]


async def test_events_published_together_are_one_batch_in_order(bus, stream):
    assert await bus.publish_all(events(stream, "a", "b", "c")) == [None] * 3
    messages = await stored(bus, stream)
    assert [message.subject for message in messages] == [f"{stream}.{one}" for one in "abc"]
    assert len({message.headers["Nats-Batch-Id"] for message in messages}) == 1


async def test_of_a_batch_that_was_stored_in_part_the_rest_is_stored(bus, stream):
    await bus.publish(f"{stream}.b", b"x", msg_id="b")
    assert await bus.publish_all(events(stream, "a", "b", "c")) == [None] * 3
    assert await bus.publish_all(events(stream, "a", "b", "c")) == [None] * 3
    assert [message.subject for message in await stored(bus, stream)] == [f"{stream}.{one}" for one in "bac"]


async def test_a_stream_that_takes_no_batches_takes_their_events(bus, name):
    await bus.js.add_stream(name=name, subjects=[f"{name}.>"])
    assert await bus.publish_all(events(name, "a", "b")) == [None] * 2
    assert len(await stored(bus, name)) == 2


async def test_an_event_that_cannot_be_stored_spoils_no_other(bus, stream):
    batch = events(stream, "a", "b") + events(stream, "large", size=2 << 20) + events(stream, "c")
    results = await bus.publish_all(batch)
    assert [isinstance(result, BusError) for result in results] == [False, False, True, False]
    assert len(await stored(bus, stream)) == 3


async def test_without_a_stream_no_event_of_a_batch_counts_as_stored(bus, name):
    results = await bus.publish_all(events(name, "a", "b"))
    assert all(isinstance(result, BusError) for result in results)


async def test_publishing_without_a_stream_fails_instead_of_dropping(bus, name):
    with pytest.raises(BusError):
        await bus.publish(f"{name}.a", b"x", msg_id="id")


async def test_a_full_stream_refuses_new_events_and_keeps_old_ones(bus, name):
    await bus.ensure_stream(name, [f"{name}.>"], max_age_s=3600, max_bytes=2000)
    refused = 0
    for i in range(50):
        try:
            await bus.publish(f"{name}.a", b"x" * 100, msg_id=str(i))
        except BusError:
            refused += 1
    state = (await bus.js.stream_info(name)).state
    assert refused
    assert state.first_seq == 1
    assert state.messages == 50 - refused


async def test_a_stream_can_be_declared_again_with_other_limits(bus, stream):
    await bus.ensure_stream(stream, [f"{stream}.>"], max_age_s=7200)
    config = (await bus.js.stream_info(stream)).config
    assert (config.max_age, config.retention, config.discard) == (7200, "limits", "new")


async def test_the_consumer_gets_every_event_and_one_event_promptly(bus, stream, eventually):
    seen: list[bytes] = []

    async def handler(messages):
        seen.extend(m.data for m in messages)

    async with running(bus.consume(stream, "reader", handler, 64)):
        await asyncio.gather(*(bus.publish(f"{stream}.a", b"%d" % i, msg_id=str(i)) for i in range(500)))
        await eventually(lambda: len(seen) == 500)
        assert sorted(map(int, seen)) == list(range(500))
        took_s = []
        for i in range(500, 503):  # more than one: a machine that stands still is late once
            begun = time.monotonic()
            await bus.publish(f"{stream}.a", b"%d" % i, msg_id=str(i))
            await eventually(lambda expected=i + 1: len(seen) == expected)
            took_s.append(time.monotonic() - begun)
        assert min(took_s) < 1
        for _ in range(100):
            if await bus.consumer_pending(stream, "reader") == 0:
                break
            await asyncio.sleep(0.05)
        assert await bus.consumer_pending(stream, "reader") == 0


async def test_a_handler_that_fails_gets_the_batch_again(bus, stream, eventually):
    attempts = 0
    taken: set[bytes] = set()

    async def handler(messages):
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise OSError("database is away")
        taken.update(m.data for m in messages)

    for i in range(3):
        await bus.publish(f"{stream}.a", b"%d" % i, msg_id=str(i))
    async with running(bus.consume(stream, "reader", handler, 64)):
        await eventually(lambda: taken == {b"0", b"1", b"2"})


async def test_a_second_reader_of_the_durable_goes_on_where_the_first_ended(bus, stream, eventually):
    seen: list[bytes] = []

    async def handler(messages):
        seen.extend(m.data for m in messages)

    for i in range(4):
        await bus.publish(f"{stream}.a", b"%d" % i, msg_id=str(i))
        async with running(bus.consume(stream, "reader", handler, 64)):
            await eventually(lambda expected=i + 1: len(seen) == expected)
    assert seen == [b"0", b"1", b"2", b"3"]


async def test_watchers_get_the_last_of_each_subject_and_then_the_new_ones(bus, stream, eventually):
    for value in (b"old", b"new"):
        await bus.publish(f"{stream}.worker.a", value, msg_id=value.decode())
    await bus.publish(f"{stream}.worker.b", b"only", msg_id="b")
    seen: list[tuple[str, bytes]] = []
    async with running(
        bus.last_per_subject(stream, f"{stream}.worker.>", lambda m: seen.append((m.subject[-1], m.data)))
    ):
        await eventually(lambda: len(seen) == 2)
        await bus.publish(f"{stream}.worker.a", b"newer", msg_id="c")
        await eventually(lambda: len(seen) == 3)
    assert seen == [("a", b"new"), ("b", b"only"), ("a", b"newer")]


async def test_a_snapshot_is_whole_however_soon_the_server_sends_it(bus, name):
    bucket = await bus.ensure_kv(name)
    assert await last_events(bus, f"KV_{name}", f"$KV.{name}.>") == []
    await bucket.put("a", b"1")
    await bucket.put("b", b"1")
    await bucket.put("b", b"2")
    await bucket.delete("a")
    for _ in range(50):
        events = await last_events(bus, f"KV_{name}", f"$KV.{name}.>")
        assert sorted((event.subject[-1], event.data, event.deleted) for event in events) == [
            ("a", b"", True),
            ("b", b"2", False),
        ]


async def test_a_watch_that_is_ended_as_an_event_arrives_ends(bus, stream):
    for number in range(5):
        current = asyncio.Event()
        watch = bus.last_per_subject(stream, f"{stream}.>", lambda _: None, on_current=current.set)
        watching = asyncio.create_task(watch)
        await current.wait()
        await bus.publish(f"{stream}.a", b"", msg_id=str(number))  # its answer and the event come together
        async with asyncio.timeout(5):
            await lifecycle.end(watching)


async def test_what_still_follows_a_bus_that_is_closed_fails(bus, nats_url, stream, eventually):
    leaving, seen = await Bus.connect(nats_url, "leaving"), []
    await bus.publish(f"{stream}.a", b"", msg_id="1")

    async def take(messages):
        seen.extend(messages)

    work = (
        leaving.consume(stream, f"{stream}-reader", take, 8),
        leaving.last_per_subject(stream, f"{stream}.>", seen.append),
        leaving.kv(f"{stream}-nobody-makes-it"),
    )
    tasks = [asyncio.create_task(one) for one in work]
    await eventually(lambda: len(seen) == 2)
    await leaving.close()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [BusError] * 3


async def test_a_view_waits_for_its_bucket_and_follows_it(bus, name, eventually):
    view = KvView(bus, name, bytes.decode)
    assert view.staleness_s() == math.inf
    async with running(view.run()):
        await asyncio.sleep(0.1)
        bucket = await bus.ensure_kv(name)
        await asyncio.wait_for(view.ready(), 10)
        assert dict(view.items()) == {}
        await bucket.put("a", b"1")
        await bucket.put("b", b"2")
        await eventually(lambda: dict(view.items()) == {"a": "1", "b": "2"})
        await bucket.delete("a")
        await bucket.put("b", b"3")
        await eventually(lambda: dict(view.items()) == {"b": "3"})
        assert view.staleness_s() == 0


async def test_a_views_version_rises_with_the_keys_that_readers_see_and_with_nothing_else(
    bus, name, eventually
):
    bucket = await bus.ensure_kv(name)
    for key in "abc":
        await bucket.put(key, b"1")
    view = KvView(bus, name, bytes.decode)
    async with running(view.run()):
        await asyncio.wait_for(view.ready(), 10)
        assert view.version == 1
        await bucket.put("a", b"2")
        await eventually(lambda: view.get("a") == "2")
        assert view.version == 1
        await bucket.put("d", b"1")
        await eventually(lambda: view.get("d") == "1")
        assert view.version == 2
        await bucket.delete("d")
        await eventually(lambda: view.get("d") is None)
        assert view.version == 3


async def test_an_unreadable_entry_does_not_blind_the_view(bus, name):
    bucket = await bus.ensure_kv(name)
    await bucket.put("bad", b"\xff")
    await bucket.put("good", b"1")
    view = KvView(bus, name, bytes.decode)
    async with running(view.run()):
        await asyncio.wait_for(view.ready(), 10)
        assert dict(view.items()) == {"good": "1"}


async def test_brief_loss_of_nats_keeps_the_last_state_and_then_catches_up(
    bus, nats_server, name, stream, tmp_path, eventually
):
    """The loss of the coordinator must not lose state, events or watchers."""
    bucket = await bus.ensure_kv(name)
    await bucket.put("a", b"1")
    view = KvView(bus, name, bytes.decode)
    consumed: list[bytes] = []
    outbox, stop = Outbox(tmp_path / "outbox"), asyncio.Event()
    outbox.open()

    async def handler(messages):
        consumed.extend(m.data for m in messages)

    async with (
        running(view.run()),
        running(bus.consume(stream, "reader", handler, 64)),
        running(outbox.drain(bus, stop)),
    ):
        await asyncio.wait_for(view.ready(), 10)
        await outbox.append(f"{stream}.a", "1", b"before")
        await eventually(lambda: consumed == [b"before"] and not outbox.pending)
        nats_server.kill()
        await eventually(lambda: not bus.connected)
        await outbox.append(f"{stream}.a", "2", b"during")
        await asyncio.sleep(0.3)
        assert view.get("a") == "1"
        assert view.staleness_s() >= 0.2
        assert outbox.pending == 1
        nats_server.start()
        await eventually(lambda: bus.connected)
        await bucket.put("a", b"2")
        await bucket.put("c", b"3")
        await eventually(lambda: dict(view.items()) == {"a": "2", "c": "3"})
        await eventually(lambda: view.staleness_s() == 0)
        await eventually(lambda: consumed == [b"before", b"during"], timeout_s=20)
        await eventually(lambda: outbox.pending == 0)


async def test_a_bus_that_is_back_is_connected_from_its_new_generation_on(nats_server, bus):
    """Else a view would look current for a moment, before it is read again."""
    for _ in range(3):
        before = bus.generation
        nats_server.kill()
        async with asyncio.timeout(10):
            while bus.connected:  # noqa: ASYNC110 - the client notices
                await asyncio.sleep(0)
        nats_server.start()
        async with asyncio.timeout(10):
            while bus.generation == before:
                assert not bus.connected
                await asyncio.sleep(0)
        assert bus.connected


async def test_connecting_waits_for_a_nats_that_is_not_there_yet(nats_server, bus):
    nats_server.kill()
    connecting = asyncio.create_task(Bus.connect(nats_server.url, "early"))
    await asyncio.sleep(0.5)
    assert not connecting.done()
    nats_server.start()
    early = await asyncio.wait_for(connecting, 10)
    assert early.connected
    await early.close()
