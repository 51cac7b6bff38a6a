"""Usage events, made durable in the outbox before a client hears of them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING

import kit.log
from kit.errors import Code, ServiceError
from kit.outbox import OutboxFull
from services.gateway.adapters.verdict_codec import PROTO_REASONS
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from kit.outbox import Outbox
    from services.gateway.core.effects import UsageRecord
    from services.gateway.core.outcome import Closed

_log = kit.log.get("usage")
# The rest is kept for closing what is already running.
_SHARE_FOR_NEW_WORK = 0.8
_RETRY_S = 0.5
# A renewal that waits behind others says nothing: it would come late, and many of them.
_BEHIND_S = 5.0


class OutboxJournal:
    """The usage journal over `kit.outbox`."""

    def __init__(self, outbox: Outbox, max_bytes: int) -> None:
        self._outbox = outbox
        self._room = int(max_bytes * _SHARE_FOR_NEW_WORK)

    def check_room(self) -> None:
        """Raise USAGE_BACKPRESSURE when new work must be refused."""
        if self._outbox.pending_bytes > self._room:
            raise ServiceError(
                Code.UNAVAILABLE,
                "USAGE_BACKPRESSURE",
                "usage events wait to be published",
                retry_after_ms=1000,
            )

    async def opened(self, record: UsageRecord) -> None:
        """Return once `opened` is durable; raises USAGE_BACKPRESSURE."""
        await self._append("opened", record, _opened(record).SerializeToString())

    async def closed(self, record: UsageRecord, closed: Closed) -> None:
        """Return once `closed` is durable; waits for room rather than lose it."""
        payload = _closed(record, closed).SerializeToString()
        while True:
            try:
                await self._append("closed", record, payload)
            except OutboxFull as full:
                _log.error("closed usage waits", reason=full.message)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def renewed(self, request_ids: Sequence[int]) -> None:
        """Say that these requests still run, unless NATS is away or the outbox is short of room."""
        behind = self._outbox.oldest_age_s > _BEHIND_S or self._outbox.pending_bytes > self._room
        if request_ids and not behind:
            payload = events_pb2.UsageRenewed(request_id=request_ids).SerializeToString()
            with contextlib.suppress(OutboxFull):
                await self._outbox.append("usage.v1.renewed", f"{secrets.token_hex(8)}-renewed", payload)

    async def _append(self, kind: str, record: UsageRecord, payload: bytes) -> None:
        msg_id = f"{record.request_id}-{record.owner_epoch}-{kind}"
        await self._outbox.append(f"usage.v1.{kind}.{record.tenant_id}", msg_id, payload)


def _opened(record: UsageRecord) -> events_pb2.UsageOpened:
    event = events_pb2.UsageOpened(
        request_id=record.request_id,
        owner_epoch=record.owner_epoch,
        tenant_id=record.tenant_id,
        model_version=record.model_version,
        tokenizer_version=record.tokenizer_version,
        runtime_revision=record.runtime_revision,
    )
    _set(event.opened_time, record.opened_at)
    return event


def _closed(record: UsageRecord, closed: Closed) -> events_pb2.UsageClosed:
    event = events_pb2.UsageClosed(
        opened=_opened(record),
        finish_reason=PROTO_REASONS[closed.finish_reason],
        input_tokens=closed.input_tokens,
        cached_tokens=closed.cached_tokens,
        output_tokens=closed.output_tokens,
        billable_tokens=closed.billable_tokens,
        queue_ms=closed.queue_ms,
        ttft_ms=closed.ttft_ms,
        total_ms=closed.total_ms,
    )
    _set(event.closed_time, time.time())
    return event


def _set(timestamp: Timestamp, seconds: float) -> None:
    timestamp.FromNanoseconds(int(seconds * 1e9))
