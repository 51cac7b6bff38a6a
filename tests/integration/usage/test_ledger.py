import asyncio
import random
import sys

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from kit.messages import Message
from services.usage.adapters.database import Database, LedgerUnavailable
from services.usage.adapters.ledger import Ledger
from services.usage.adapters.schema import audit, metadata
from services.usage.core.ledger import RowState
from services.usage.core.listing import Position, page_token, query
from services.usage.recorder import Recorder
from tests.support.usage import BASE_US, closed, opened, renewed

WINDOW_S = 60.0


@pytest.fixture
def ledger(database):
    return Ledger(database, WINDOW_S)


def message(event, kind=None, at=0.0):
    kind = kind or type(event).__name__.removeprefix("Usage").lower()
    data = event if isinstance(event, bytes) else event.SerializeToString()
    subject = f"usage.v1.{kind}" if kind == "renewed" else f"usage.v1.{kind}.acme"
    return Message(subject, data, sequence=1, at=at)


async def record(ledger, *events):
    await Recorder(ledger)([message(event) for event in events])


async def rows(ledger, **wanted):
    fields = {"tenant_id": "acme", "request_id": 0, "start_us": None, "end_us": None}
    fields |= {"page_size": 1000, "page_token": ""}
    return await ledger.page(query(**fields | wanted))


async def audited(database):
    async with database.transaction() as connection:
        result = await connection.execute(
            sa.select(audit.c.request_id, audit.c.reason).order_by(audit.c.reason)
        )
        return [tuple(record) for record in result]


async def test_a_row_holds_every_column_of_its_events(ledger):
    await record(ledger, opened(7))
    await record(ledger, closed(7))
    (row,) = await rows(ledger)
    entry, closing = row.entry, row.entry.closing
    assert (entry.request_id, entry.tenant_id, entry.owner_epoch) == (7, "acme", 1)
    assert (entry.model_version, entry.tokenizer_version, entry.adapter) == ("chat@1", "t1", "")
    assert (entry.runtime_revision, entry.opened_us) == ("r1", BASE_US)
    assert (closing.input_tokens, closing.cached_tokens, closing.output_tokens) == (5, 2, 87)
    assert (closing.billable_tokens, closing.finish_reason) == (92, 1)
    assert (closing.queue_ms, closing.ttft_ms, closing.total_ms) == (1.5, 20.25, 900.125)
    assert closing.closed_us == BASE_US + 900_125


@pytest.mark.parametrize("seed", range(3))
async def test_shuffled_repeated_and_split_deliveries_make_the_same_ledger(ledger, database, seed):
    """A streamed request is never billed zero, and never twice."""
    events = [make(i) for i in range(1, 61) for make in (opened, closed)]
    events += [closed(i, epoch=2, output=i) for i in range(1, 11)]
    rng = random.Random(seed)
    deliveries = events * 2
    rng.shuffle(deliveries)
    while deliveries:
        size = rng.randint(1, 40)
        await record(ledger, *deliveries[:size])
        del deliveries[:size]
    stored = {row.entry.request_id: row.entry.closing.output_tokens for row in await rows(ledger)}
    assert stored == {i: i if i <= 10 else 87 for i in range(1, 61)}
    assert sorted(await audited(database)) == [(i, "superseded") for i in range(1, 11)]


async def test_an_event_delivered_four_times_bills_once(ledger):
    batch = [message(opened(7)), message(closed(7)), message(closed(8))]
    await Recorder(ledger)(batch)
    before = await rows(ledger)
    for _ in range(3):
        await Recorder(ledger)(batch)
    assert await rows(ledger) == before
    assert len(before) == 2


async def test_a_closing_after_the_row_is_final_goes_to_the_audit(database):
    ledger = Ledger(database, window_s=0.0)
    await record(ledger, closed(7, output=87))
    await record(ledger, closed(7, epoch=2, output=40))
    (row,) = await rows(ledger)
    assert row.entry.closing.output_tokens == 87
    assert await audited(database) == [(7, "late")]


async def test_opened_without_closed_is_unresolved_counted_and_bills_nothing(database):
    ledger = Ledger(database, window_s=0.0)
    await record(ledger, opened(7), closed(8))
    later = 2 * BASE_US
    assert await ledger.unresolved(later) == 1
    states = {row.entry.request_id: row.state(later) for row in await rows(ledger)}
    assert states == {7: RowState.UNRESOLVED, 8: RowState.FINAL}
    await record(ledger, closed(7))
    assert await ledger.unresolved(later) == 0


async def test_a_request_that_runs_for_hours_is_not_unresolved_while_its_owner_renews_it(ledger):
    now = 2 * BASE_US / 1e6
    batch = [opened(7), opened(8), closed(9), *(opened(i) for i in range(10, 13))]
    await record(ledger, *batch)
    await Recorder(ledger)([message(renewed(7, 9, *range(10, 3000)), at=now), message(renewed(404), at=now)])
    assert await ledger.unresolved(int((now + WINDOW_S - 1) * 1e6)) == 1
    states = {row.entry.request_id: row.state(int(now * 1e6)) for row in await rows(ledger)}
    assert states[7] is states[12] is RowState.OPEN
    assert (states[8], states[9]) == (RowState.UNRESOLVED, RowState.FINAL)
    assert await ledger.unresolved(int((now + WINDOW_S) * 1e6)) == 5


async def test_a_renewal_in_the_batch_of_its_opened_counts(ledger):
    now = 2 * BASE_US / 1e6
    await Recorder(ledger)([message(renewed(7), at=now), message(opened(7))])
    assert await ledger.unresolved(int(now * 1e6)) == 0


async def test_poison_events_are_audited_and_block_nothing(ledger, database):
    too_long = closed(9)
    too_long.opened.model_version = "x\0y"
    garbage = b"\xff\xff"
    batch = [message(garbage, "opened"), message(closed(7)), message(too_long), message(garbage, "opened")]
    batch.append(message(b"\xff\xff\xff", "renewed"))
    await Recorder(ledger)(batch)
    await Recorder(ledger)(batch)
    assert [row.entry.request_id for row in await rows(ledger)] == [7]
    assert await audited(database) == [(None, "unreadable")] * 3


async def test_two_recorders_at_once_lose_and_double_nothing(database, database_url):
    """Either order may win a race, and a batch that failed comes again."""
    other = Database(database_url)
    batches = [[opened(i), closed(i)] for i in range(1, 21)]

    async def deliver(target, events):
        ledger = Ledger(target, WINDOW_S)
        while True:
            try:
                return await record(ledger, *events)
            except LedgerUnavailable:
                await asyncio.sleep(0.01)

    firsts = [deliver(database, [first]) for first, _ in batches]
    await asyncio.gather(*firsts, *(deliver(other, [second]) for _, second in batches))
    await other.close()
    stored = await rows(Ledger(database, WINDOW_S))
    assert sorted(row.entry.request_id for row in stored) == list(range(1, 21))
    assert all(row.entry.closing for row in stored)


async def test_pages_follow_one_another_without_gap_or_repeat_while_rows_arrive(ledger):
    await record(ledger, *(closed(i, at_us=BASE_US + i // 3) for i in range(1, 31)))
    seen, token = [], ""
    while True:
        page = await rows(ledger, page_size=7, page_token=token)
        seen += [row.entry.request_id for row in page[:7]]
        if len(page) <= 7:
            break
        token = page_token(Position(page[6].entry.opened_us, page[6].entry.request_id))
        await record(ledger, closed(1000 + len(seen), at_us=BASE_US + 1000))
    assert seen == list(range(30, 0, -1))


async def test_rows_are_selected_by_tenant_request_and_time(ledger):
    await record(ledger, *(closed(i, at_us=BASE_US + i) for i in range(1, 6)), closed(99, tenant="rival"))

    async def found(**wanted):
        return [row.entry.request_id for row in await rows(ledger, **wanted)]

    assert await found() == [5, 4, 3, 2, 1]
    assert await found(request_id=3) == [3]
    assert await found(start_us=BASE_US + 2, end_us=BASE_US + 4) == [3, 2]
    assert await found(tenant_id="rival") == [99]
    assert await found(request_id=99) == []
    assert await found(tenant_id="nobody") == []


async def test_the_migrations_make_exactly_the_schema_and_run_again_without_effect(database):
    await database.migrate()

    def differences(connection):
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_several_processes_may_migrate_at_once(database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("a SQLite ledger has one process")
    code = "import asyncio; from services.usage.adapters.database import Database"
    script = f"{code}; asyncio.run(Database({database_url!r}).migrate())"
    processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", script) for _ in range(3)]
    assert [await process.wait() for process in processes] == [0, 0, 0]


async def test_a_database_that_is_away_is_unavailable_without_a_statement_in_the_message():
    database = Database("postgresql+asyncpg://user:secret@127.0.0.1:1/none")
    with pytest.raises(LedgerUnavailable) as refusal:
        await record(Ledger(database, WINDOW_S), closed(7))
    assert "secret" not in str(refusal.value)
    assert "INSERT" not in str(refusal.value)
