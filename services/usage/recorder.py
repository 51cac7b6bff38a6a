"""From batches of the USAGE stream to the ledger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kit import log
from services.usage.adapters import codec, metrics
from services.usage.core.ledger import Renewal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit.bus import Message
    from services.usage.adapters.ledger import Ledger
    from services.usage.core.ledger import Entry

_log = log.get("recorder")


class Recorder:
    """Handles a batch whole: when it returns, the batch may be acknowledged."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def __call__(self, messages: Sequence[Message]) -> None:
        """Commit the batch, unreadable events to the audit; raises when the database is away."""
        entries: list[Entry] = []
        renewals: list[Renewal] = []
        unreadable: list[bytes] = []
        for message in messages:
            try:
                event = codec.decode(message.subject, message.data, int(message.at * 1e6))
                if isinstance(event, Renewal):
                    renewals.append(event)
                else:
                    entries.append(event)
            except codec.UnreadableEvent as error:
                _log.error("unreadable event", sequence=message.sequence, error=str(error))
                unreadable.append(message.data)
        now_us = time.time_ns() // 1000
        recorded = await self._ledger.record(entries, renewals, unreadable, now_us)
        metrics.EVENTS.inc(len(entries))
        metrics.ROWS_WRITTEN.inc(recorded.rows)
        for reason, count in recorded.audited.items():
            metrics.AUDITED.labels(reason.value).inc(count)
        committed_us = time.time_ns() // 1000
        for entry in entries:
            told_us = entry.closing.closed_us if entry.closing else entry.opened_us
            metrics.EVENT_LAG.observe(max(0, committed_us - told_us) / 1e6)
