"""From the stream into the ledger, while the database comes and goes."""

import asyncio
import contextlib
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from kit import lifecycle
from kit.bus import BusError
from services.usage.adapters.database import LedgerUnavailable
from services.usage.adapters.ledger import Ledger
from services.usage.core.listing import query
from services.usage.recorder import Recorder
from tests.support.usage import closed, opened

WINDOW_S = 60.0
ALL = query(tenant_id="acme", request_id=0, start_us=None, end_us=None, page_size=1000, page_token="")


@pytest.fixture
async def bus(bus):
    await bus.ensure_stream("USAGE", ["usage.v1.>"], max_age_s=3600)
    await bus.js.purge_stream("USAGE")
    return bus


@pytest.fixture
async def database_switch(database_url, postgres_url):
    """Turns a PostgreSQL database off and on, connections that exist included."""
    if database_url.startswith("sqlite"):
        pytest.skip("a SQLite ledger cannot be away: it is a file of the same process")
    name = sa.make_url(database_url).database
    engine = create_async_engine(postgres_url, isolation_level="AUTOCOMMIT")

    async def switch(on: bool):
        async with engine.connect() as connection:
            await connection.execute(sa.text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {on}"))
            if not on:
                kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
                await connection.execute(sa.text(kill), {"name": name})

    yield switch
    await engine.dispose()


async def publish(bus, ids):
    """Events that JetStream itself does not recognise as repeated."""
    for i in ids:
        for kind, event in (("opened", opened(i)), ("closed", closed(i))):
            subject = f"usage.v1.{kind}.acme"
            await bus.publish(subject, event.SerializeToString(), msg_id=uuid.uuid4().hex)


async def until_stored(ledger, count):
    async with asyncio.timeout(20):
        while True:
            rows = await ledger.page(ALL)
            if len(rows) >= count and all(row.entry.closing for row in rows):
                return rows
            await asyncio.sleep(0.05)


async def until_acknowledged(bus, durable):
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(BusError):  # the consumer is not there yet
                if await bus.consumer_pending("USAGE", durable) == 0:
                    return
            await asyncio.sleep(0.05)


async def test_a_database_that_is_away_holds_the_acks_and_loses_nothing(bus, database, database_switch):
    ledger = Ledger(database, WINDOW_S)
    consumer = asyncio.create_task(bus.consume("USAGE", "away", Recorder(ledger), 64))
    await publish(bus, range(1, 11))
    await until_stored(ledger, 10)
    await until_acknowledged(bus, "away")
    await database_switch(on=False)
    await publish(bus, range(11, 21))
    await asyncio.sleep(1)
    assert await bus.consumer_pending("USAGE", "away") == 20
    with pytest.raises(LedgerUnavailable):
        await ledger.page(ALL)
    await database_switch(on=True)
    rows = await until_stored(ledger, 20)
    assert sorted(row.entry.request_id for row in rows) == list(range(1, 21))
    await until_acknowledged(bus, "away")
    await lifecycle.end(consumer)


async def test_a_crash_between_commit_and_ack_doubles_nothing(bus, database):
    ledger = Ledger(database, WINDOW_S)
    recorder, crashed = Recorder(ledger), asyncio.Event()

    async def commits_then_dies(messages):
        await recorder(messages)
        if await billed():
            crashed.set()
            await asyncio.sleep(60)

    async def billed():
        return [row for row in await ledger.page(ALL) if row.entry.closing]

    await publish(bus, range(1, 11))
    first = asyncio.create_task(bus.consume("USAGE", f"crash-{id(database)}", commits_then_dies, 64))
    await crashed.wait()
    await lifecycle.end(first)
    before = await billed()
    await publish(bus, range(1, 11))
    second = asyncio.create_task(bus.consume("USAGE", f"again-{id(database)}", recorder, 64))
    await until_stored(ledger, 10)
    await until_acknowledged(bus, f"again-{id(database)}")
    await lifecycle.end(second)
    after = {row.entry.request_id: row for row in await ledger.page(ALL)}
    assert len(after) == 10
    assert all(after[row.entry.request_id] == row for row in before)


async def test_the_usage_stream_is_no_work_queue_that_loses_messages(bus, database):
    """Being read removes nothing, and a reader that dies takes nothing with it."""
    ledger = Ledger(database, WINDOW_S)
    durable = f"kept-{id(database)}"
    await publish(bus, range(1, 4))
    reader = asyncio.create_task(bus.consume("USAGE", durable, Recorder(ledger), 64))
    await until_stored(ledger, 3)
    await until_acknowledged(bus, durable)
    await lifecycle.end(reader)
    stream = await bus.js.stream_info("USAGE")
    assert (stream.config.retention, stream.state.messages) == ("limits", 6)
    config = (await bus.js.consumer_info("USAGE", durable)).config
    assert (config.durable_name, config.ack_policy, config.deliver_subject) == (durable, "explicit", None)
