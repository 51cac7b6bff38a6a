"""The rule of the ledger: which event makes a request's row, and when the row stops changing.

Events of one request may come in any order, repeated and from several owners. Within the window the row is
the maximum of what came, so that order does not matter; after it a closed row never changes. An open row
counts as unresolved one window after its owner was last heard of.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SETTLING_S = 30.0


class RowState(enum.IntEnum):
    """How far a row has come; numbered as in the usage proto."""

    OPEN = 1
    CLOSED = 2
    FINAL = 3
    UNRESOLVED = 4


class AuditReason(enum.StrEnum):
    """Why an event is in the audit table and not in billing."""

    SUPERSEDED = "superseded"
    LATE = "late"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, order=True)
class Closing:
    """How a request ended and what it costs."""

    finish_reason: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    billable_tokens: int
    queue_ms: float
    ttft_ms: float
    total_ms: float
    closed_us: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: `opened` without a closing, `closed` with one. Times are microseconds since 1970."""

    request_id: int
    owner_epoch: int
    tenant_id: str
    model_version: str
    tokenizer_version: str
    adapter: str
    runtime_revision: str
    opened_us: int
    closing: Closing | None = None

    def outranks(self, other: Entry) -> bool:
        """A closing beats none, then the highest owner epoch; equal ones by content, whatever came first."""
        return self._rank() > other._rank()

    def _rank(self) -> tuple[object, ...]:
        content = tuple(getattr(self, f.name) for f in fields(self) if f.name != "closing")
        closing = (self.closing,) if self.closing else ()
        return (self.closing is not None, self.owner_epoch, content, closing)


@dataclass(frozen=True, slots=True)
class Renewal:
    """An owner's word, stored at `heard_us`, that these requests still run."""

    request_ids: frozenset[int]
    heard_us: int


@dataclass(frozen=True, slots=True)
class Row:
    """A request's row. At `settles_us` an open one counts as unresolved and a closed one is final."""

    entry: Entry
    settles_us: int

    def state(self, now_us: int) -> RowState:
        """How far the row has come. An unresolved row still takes its closing, however late that comes."""
        if now_us < self.settles_us:
            return RowState.CLOSED if self.entry.closing else RowState.OPEN
        return RowState.FINAL if self.entry.closing else RowState.UNRESOLVED


class Audit(NamedTuple):
    """An event that does not bill."""

    entry: Entry
    reason: AuditReason


def fold(
    stored: Mapping[int, Row],
    entries: Iterable[Entry],
    renewals: Iterable[Renewal],
    now_us: int,
    window_us: int,
) -> tuple[list[Row], list[Audit]]:
    """Bring a batch into the rows that are stored of it: the rows to write, and what is for the audit."""
    rows, losers = dict(stored), list[Audit]()
    for entry in entries:
        row, loser = merge(rows.get(entry.request_id), entry, now_us, window_us)
        rows[entry.request_id] = row
        losers += [loser] if loser else []
    heard = last_heard(renewals)
    for request_id in heard.keys() & rows.keys():
        rows[request_id] = renew(rows[request_id], heard[request_id], window_us)
    return [row for key, row in rows.items() if row != stored.get(key)], losers


def last_heard(renewals: Iterable[Renewal]) -> dict[int, int]:
    """When the owner of each request was last heard of."""
    heard: dict[int, int] = {}
    for renewal in renewals:
        for request_id in renewal.request_ids:
            heard[request_id] = max(heard.get(request_id, 0), renewal.heard_us)
    return heard


def merge(row: Row | None, event: Entry, now_us: int, window_us: int) -> tuple[Row, Audit | None]:
    """Bring one event into its row; what loses a contest of closings is for the audit."""
    if row is None:
        return Row(event, now_us + window_us), None
    if event == row.entry:
        return row, None
    if row.state(now_us) is RowState.FINAL:
        return row, _audit(event, AuditReason.LATE)
    if event.outranks(row.entry):
        return Row(event, now_us + window_us), _audit(row.entry, AuditReason.SUPERSEDED)
    return row, _audit(event, AuditReason.SUPERSEDED)


def renew(row: Row, heard_us: int, window_us: int) -> Row:
    """Let an open row wait for a window from when its owner was heard; a closed one stays as it is."""
    if row.entry.closing:
        return row
    return replace(row, settles_us=max(row.settles_us, heard_us + window_us))


def _audit(entry: Entry, reason: AuditReason) -> Audit | None:
    return Audit(entry, reason) if entry.closing else None
