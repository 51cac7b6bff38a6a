"""Usage events from a gateway's outbox to PostgreSQL, while either server restarts under them."""

import asyncio

import nats
import nats.errors
import pytest
from sqlalchemy.exc import DBAPIError

from kit import lifecycle
from kit.bus import Bus
from kit.outbox import Outbox
from services.usage.adapters.database import Database, LedgerUnavailable
from services.usage.adapters.ledger import Ledger
from services.usage.bootstrap import DURABLE, STREAM, SUBJECTS
from services.usage.core.listing import query
from services.usage.recorder import Recorder
from tests.support.usage import closed, opened

WINDOW_S = 60.0


@pytest.fixture
async def ledger(ledger_url):
    database = Database(ledger_url)
    async with asyncio.timeout(30):
        while True:
            try:
                await database.migrate()
                break
            except (OSError, DBAPIError):
                await asyncio.sleep(0.2)
    yield Ledger(database, WINDOW_S)
    await database.close()


@pytest.fixture
async def path(ledger, nats_urls, tmp_path):
    """A gateway's outbox that drains into the ledger; calling it makes one request's events durable."""
    usage = await Bus.connect(nats_urls["usage"], "usage")
    await usage.ensure_stream(STREAM, SUBJECTS, 3600)
    gateway = await Bus.connect(nats_urls["gateway"], "gateway")
    outbox = Outbox(tmp_path / "outbox")
    outbox.open()
    stop = asyncio.Event()
    consumer = asyncio.create_task(usage.consume(STREAM, DURABLE, Recorder(ledger), 64))
    publisher = asyncio.create_task(outbox.drain(gateway, stop))

    async def request(request_id, tenant):
        for kind, event in (("opened", opened), ("closed", closed)):
            payload = event(request_id, tenant=tenant).SerializeToString()
            await outbox.append(f"usage.v1.{kind}.{tenant}", f"{kind}-{request_id}", payload)

    yield request
    stop.set()
    await asyncio.wait({publisher}, timeout=10)
    await lifecycle.end(consumer, publisher)
    await gateway.close()
    await usage.close()
    outbox.close()


async def until_billed(ledger, tenant, ids):
    wanted = query(tenant_id=tenant, request_id=0, start_us=None, end_us=None, page_size=1000, page_token="")
    async with asyncio.timeout(60):
        while True:
            rows = [row.entry for row in await _page(ledger, wanted) if row.entry.closing]
            if {row.request_id for row in rows} >= set(ids):
                return sorted(row.request_id for row in rows)
            await asyncio.sleep(0.1)


async def _page(ledger, wanted):
    try:
        return await ledger.page(wanted)
    except LedgerUnavailable:  # it is away, which is what the test does to it
        return []


async def test_each_request_becomes_one_row(path, ledger):
    for request_id in range(1, 6):
        await path(request_id, "plain")
    assert await until_billed(ledger, "plain", range(1, 6)) == list(range(1, 6))


async def test_events_wait_for_a_nats_that_restarts_and_arrive_once(path, ledger, nats_container):
    await path(11, "bus")
    restarting = asyncio.create_task(asyncio.to_thread(nats_container.restart, 1.0))
    for request_id in range(12, 20):
        await path(request_id, "bus")
        await asyncio.sleep(0.1)
    await restarting
    assert await until_billed(ledger, "bus", range(11, 20)) == list(range(11, 20))


async def test_events_wait_for_a_database_that_restarts_and_are_billed_once(path, ledger, postgres_container):
    await path(21, "database")
    restarting = asyncio.create_task(asyncio.to_thread(postgres_container.restart, 1.0))
    for request_id in range(22, 30):
        await path(request_id, "database")
        await asyncio.sleep(0.1)
    await restarting
    assert await until_billed(ledger, "database", range(21, 30)) == list(range(21, 30))


@pytest.mark.parametrize("user", ["worker", "registry"])
async def test_only_gateways_and_schedulers_can_bill(nats_urls, user):
    errors = []

    async def note(error):
        errors.append(str(error))

    client = await nats.connect(nats_urls[user], inbox_prefix=f"_INBOX.{user}", error_cb=note)
    await client.publish("usage.v1.closed.acme", closed(1).SerializeToString())
    await client.flush()
    await asyncio.sleep(0.1)
    await client.close()
    assert any("permissions violation" in error.lower() for error in errors)


async def test_nobody_enters_with_the_passwords_of_the_committed_file(nats_urls):
    address = nats_urls["usage"].rpartition("@")[2]
    with pytest.raises(nats.errors.Error):
        await nats.connect(
            f"nats://usage:$TOKENLOOM_NATS_PASSWORD_USAGE@{address}",
            allow_reconnect=False,
            error_cb=lambda _: asyncio.sleep(0),
        )
