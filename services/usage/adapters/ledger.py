"""The ledger's storage: batches of events in, pages of rows out."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, fields
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from services.usage.adapters import codec
from services.usage.adapters.schema import audit, ledger
from services.usage.core.ledger import Audit, AuditReason, Closing, Entry, Row, fold, last_heard

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from services.usage.adapters.database import Database
    from services.usage.core.ledger import Renewal
    from services.usage.core.listing import Query

_CLOSING = tuple(field.name for field in fields(Closing))
_ENTRY = tuple(field.name for field in fields(Entry) if field.name != "closing")
# A statement takes a bounded number of parameters.
_IDS_A_QUERY = 1000
_NOT_CLOSED = dict.fromkeys(_CLOSING, 0) | {"closed_us": None}
_UPDATE = (
    sa.update(ledger)
    .where(ledger.c.request_id == sa.bindparam("row_id"))
    .values({column.name: sa.bindparam(column.name) for column in ledger.c if not column.primary_key})
)


class Recorded(NamedTuple):
    """What a batch did."""

    rows: int
    audited: dict[AuditReason, int]


class Ledger:
    """Rows unique by request, written under the rule of `core.ledger`."""

    def __init__(self, database: Database, window_s: float) -> None:
        self._database = database
        self._window_us = int(window_s * 1_000_000)

    async def record(
        self,
        entries: Sequence[Entry],
        renewals: Sequence[Renewal],
        unreadable: Sequence[bytes],
        now_us: int,
    ) -> Recorded:
        """Store a batch in one transaction; recording the same events again changes nothing."""
        wanted = {entry.request_id for entry in entries} | last_heard(renewals).keys()
        async with self._database.transaction() as connection:
            stored = await _rows(connection, wanted)
            changed, losers = fold(stored, entries, renewals, now_us, self._window_us)
            await _write(connection, changed, stored.keys())
            records = [_audit_record(x, now_us) for x in losers] + [_poison(x, now_us) for x in unreadable]
            new = await _write_audit(connection, records)
        return Recorded(len(changed), {r: sum(x["reason"] == r for x in new) for r in AuditReason})

    async def page(self, query: Query) -> list[Row]:
        """Rows after the position, newest first; one more than `page_size` says that more follow."""
        async with self._database.transaction() as connection:
            result = await connection.execute(_select(query))
            return [_row(record) for record in result.mappings()]

    async def unresolved(self, now_us: int) -> int:
        """How many requests were opened and, the window past, never closed."""
        count = sa.select(sa.func.count()).where(ledger.c.closed_us.is_(None), ledger.c.settles_us <= now_us)
        async with self._database.transaction() as connection:
            return int((await connection.execute(count)).scalar_one())


async def _rows(connection: AsyncConnection, request_ids: Iterable[int]) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    wanted = iter(sorted(request_ids))
    while some := list(islice(wanted, _IDS_A_QUERY)):
        # Locked, so that two services that record the same request take turns.
        select = sa.select(ledger).where(ledger.c.request_id.in_(some)).with_for_update()
        for record in (await connection.execute(select)).mappings():
            rows[record["request_id"]] = _row(record)
    return rows


async def _write(connection: AsyncConnection, rows: Sequence[Row], stored: Iterable[int]) -> None:
    known = set(stored)
    new = [_record(row) for row in rows if row.entry.request_id not in known]
    old = [_record(row) for row in rows if row.entry.request_id in known]
    if new:
        # A plain insert: when another service was first it fails, and the batch comes again.
        await connection.execute(sa.insert(ledger), new)
    if old:
        await connection.execute(_UPDATE, [record | {"row_id": record["request_id"]} for record in old])


async def _write_audit(connection: AsyncConnection, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_key = {record["event_sha256"]: record for record in records}
    if not by_key:
        return []
    known = sa.select(audit.c.event_sha256).where(audit.c.event_sha256.in_(by_key))
    for key in (await connection.execute(known)).scalars():
        del by_key[key]
    if by_key:
        await connection.execute(sa.insert(audit), list(by_key.values()))
    return list(by_key.values())


def _select(query: Query) -> sa.Select[Any]:
    opened, request = ledger.c.opened_us, ledger.c.request_id
    select = sa.select(ledger).where(ledger.c.tenant_id == query.tenant_id)
    if query.request_id is not None:
        select = select.where(request == query.request_id)
    if query.start_us is not None:
        select = select.where(opened >= query.start_us)
    if query.end_us is not None:
        select = select.where(opened < query.end_us)
    if query.after is not None:
        select = select.where(sa.tuple_(opened, request) < sa.tuple_(*map(sa.literal, query.after)))
    return select.order_by(opened.desc(), request.desc()).limit(query.page_size + 1)


def _row(record: sa.RowMapping) -> Row:
    closing = None
    if record["closed_us"] is not None:
        closing = Closing(**{name: record[name] for name in _CLOSING})
    return Row(Entry(**{name: record[name] for name in _ENTRY}, closing=closing), record["settles_us"])


def _record(row: Row) -> dict[str, Any]:
    entry = {name: getattr(row.entry, name) for name in _ENTRY}
    closing = asdict(row.entry.closing) if row.entry.closing else _NOT_CLOSED
    return entry | closing | {"settles_us": row.settles_us}


def _audit_record(loser: Audit, now_us: int) -> dict[str, Any]:
    event = codec.encode(loser.entry)
    return _event_record(event, now_us) | {"reason": loser.reason, "request_id": loser.entry.request_id}


def _poison(event: bytes, now_us: int) -> dict[str, Any]:
    return _event_record(event, now_us) | {"reason": AuditReason.UNREADABLE, "request_id": None}


def _event_record(event: bytes, now_us: int) -> dict[str, Any]:
    return {"event_sha256": hashlib.sha256(event).hexdigest(), "event": event, "received_us": now_us}
