"""Conditional writes against a real NATS."""

import asyncio
import time
import uuid

import pytest

from kit.bus import Bus, BusError
from kit.kv_store import Entry, KvStore, RevisionError


@pytest.fixture
async def bucket(bus) -> str:
    name = f"b{uuid.uuid4().hex[:8]}"
    await bus.ensure_kv(name, 60)
    return name


@pytest.fixture
def store(bus, bucket):
    return KvStore(bus, bucket, timeout_s=10.0)


async def test_an_entry_is_created_changed_and_deleted_by_its_revision(store):
    assert await store.read("a") == Entry(None, 0)
    first = await store.write("a", b"1", revision=0)
    assert await store.read("a") == Entry(b"1", first)
    second = await store.write("a", b"2", revision=first)
    third = await store.write("a", None, revision=second)
    assert await store.read("a") == Entry(None, third)
    fourth = await store.write("a", b"", revision=third)
    assert await store.read("a") == Entry(b"", fourth)


@pytest.mark.parametrize("value", [b"late", None])
async def test_a_write_that_names_another_revision_changes_nothing(store, value):
    with pytest.raises(RevisionError):
        await store.write("a", value, revision=7)
    first = await store.write("a", b"1", revision=0)
    second = await store.write("a", b"2", revision=first)
    for stale in (0, first, second + 1):
        with pytest.raises(RevisionError):
            await store.write("a", value, revision=stale)
    assert await store.read("a") == Entry(b"2", second)


async def test_of_many_racing_creators_one_wins(bus, nats_url, bucket):
    other = await Bus.connect(nats_url, "other")
    stores = [KvStore(each, bucket, timeout_s=10.0) for each in (bus, other) * 10]
    results = await asyncio.gather(
        *(store.write("a", b"%d" % i, revision=0) for i, store in enumerate(stores)), return_exceptions=True
    )
    winners = [result for result in results if isinstance(result, int)]
    assert len(winners) == 1
    assert sum(isinstance(result, RevisionError) for result in results) == len(stores) - 1
    await other.close()


async def test_a_bucket_takes_a_new_time_to_live_and_forgets_by_it(bus, bucket, store):
    assert (await bus.js.stream_info(f"KV_{bucket}")).config.max_age == 60
    await store.write("a", b"1", revision=0)
    await bus.ensure_kv(bucket, 1.0)
    assert (await bus.js.stream_info(f"KV_{bucket}")).config.max_age == 1
    async with asyncio.timeout(5):
        while (await store.read("a")).value is not None:  # noqa: ASYNC110 - a server's clock
            await asyncio.sleep(0.05)
    await store.write("a", b"2", revision=(await store.read("a")).revision)


async def test_nats_away_is_an_error_in_time_and_not_the_end(nats_server, bus, bucket, eventually):
    store = KvStore(bus, bucket, timeout_s=1.0)
    await store.write("a", b"1", revision=0)
    nats_server.kill()
    begun = time.monotonic()
    for call in (store.read("a"), store.write("b", b"1", revision=0)):
        with pytest.raises(BusError):
            await call
    assert time.monotonic() - begun < 2.5
    nats_server.start()
    await eventually(lambda: bus.connected)
    assert (await store.read("a")).value == b"1"
