"""After a restore the stream gives the ledger back what the backup did not have."""

import asyncio
import contextlib

import pytest

from kit import lifecycle
from services.usage.adapters.database import Database
from services.usage.adapters.ledger import Ledger
from services.usage.bootstrap import DURABLE, STREAM, SUBJECTS
from services.usage.core.listing import query
from services.usage.recorder import Recorder
from services.usage.replay import replay
from tests.support.usage import closed, opened

WINDOW_S = 60.0
ALL = query(tenant_id="acme", request_id=0, start_us=None, end_us=None, page_size=1000, page_token="")


@pytest.fixture
async def bus(bus):
    await bus.ensure_stream(STREAM, SUBJECTS, max_age_s=3600)
    yield bus
    await bus.js.delete_stream(STREAM)


@pytest.fixture
async def ledger_at(tmp_path):
    databases = []

    async def open_ledger(name):
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/{name}.db")
        databases.append(database)
        await database.migrate()
        return Ledger(database, WINDOW_S)

    yield open_ledger
    for database in databases:
        await database.close()


@contextlib.asynccontextmanager
async def consuming(bus, ledger):
    consumer = asyncio.create_task(bus.consume(STREAM, DURABLE, Recorder(ledger), 64))
    try:
        yield
    finally:
        await lifecycle.end(consumer)


async def until_closed(ledger, count):
    async with asyncio.timeout(20):
        while True:
            rows = await ledger.page(ALL)
            if len(rows) >= count and all(row.entry.closing for row in rows):
                return {row.entry.request_id: row.entry for row in rows}
            await asyncio.sleep(0.05)


async def publish(bus, request_id):
    for kind, event in (("opened", opened(request_id)), ("closed", closed(request_id, output=request_id))):
        subject = f"usage.v1.{kind}.acme"
        await bus.publish(subject, event.SerializeToString(), msg_id=f"{kind}-{request_id}")


async def test_rows_newer_than_the_backup_come_back_and_older_ones_stay_as_they_are(bus, nats_url, ledger_at):
    lost, restored = await ledger_at("lost"), await ledger_at("restored")
    for request_id in (1, 2):
        await publish(bus, request_id)
    async with consuming(bus, restored):
        backed_up = await until_closed(restored, 2)
    await replay(nats_url)
    for request_id in (3, 4):
        await publish(bus, request_id)
    async with consuming(bus, lost):
        before = await until_closed(lost, 4)

    await replay(nats_url)
    async with consuming(bus, restored):
        after = await until_closed(restored, 4)
    assert after == before
    assert backed_up.items() <= after.items()


async def test_a_ledger_that_never_consumed_can_be_told_to_replay(bus, nats_url, ledger_at):
    await publish(bus, 1)
    await replay(nats_url)
    ledger = await ledger_at("fresh")
    async with consuming(bus, ledger):
        assert len(await until_closed(ledger, 1)) == 1
