"""UsageService: proto <-> domain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from kit.errors import invalid
from services.usage.core import listing
from services.usage.core.listing import Position
from tokenloom.api.usage.v1 import usage_pb2, usage_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from services.usage.adapters.ledger import Ledger
    from services.usage.core.ledger import Row
    from tokenloom.api.inference.v1 import inference_pb2

_SECONDS = range(-62_135_596_800, 253_402_300_800)  # of the years 1 to 9999
_COPIED = ("request_id", "tenant_id", "model_version", "tokenizer_version", "adapter", "runtime_revision")
_COUNTED = ("input_tokens", "cached_tokens", "output_tokens", "billable_tokens")
_TIMED = ("queue_ms", "ttft_ms", "total_ms")


class UsageServicer(usage_pb2_grpc.UsageServiceServicer):
    """Answers questions about the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def ListUsage(  # noqa: N802 - named by the proto
        self, request: usage_pb2.ListUsageRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> usage_pb2.ListUsageResponse:
        """One page of a tenant's rows, newest first."""
        query = listing.query(
            tenant_id=request.tenant_id,
            request_id=request.request_id,
            start_us=_microseconds(request, "start_time"),
            end_us=_microseconds(request, "end_time"),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        rows = await self._ledger.page(query)
        now_us = time.time_ns() // 1000
        page = rows[: query.page_size]
        token = ""
        if len(rows) > len(page):
            token = listing.page_token(Position(page[-1].entry.opened_us, page[-1].entry.request_id))
        return usage_pb2.ListUsageResponse(
            rows=[_to_proto(row, now_us) for row in page], next_page_token=token
        )


def _microseconds(request: usage_pb2.ListUsageRequest, name: str) -> int | None:
    if not request.HasField(name):
        return None
    time = getattr(request, name)
    if not (time.seconds in _SECONDS and 0 <= time.nanos < 10**9):
        raise invalid(name, "must be a time between the years 1 and 9999")
    return int(time.ToMicroseconds())


def _to_proto(row: Row, now_us: int) -> usage_pb2.UsageRow:
    entry = row.entry
    proto = usage_pb2.UsageRow(
        **{name: getattr(entry, name) for name in _COPIED},
        owner_epoch=entry.owner_epoch,
        state=cast("usage_pb2.RowState", int(row.state(now_us))),
    )
    proto.opened_time.FromMicroseconds(entry.opened_us)
    if entry.closing:
        for name in (*_COUNTED, *_TIMED):
            setattr(proto, name, getattr(entry.closing, name))
        proto.finish_reason = cast("inference_pb2.FinishReason", entry.closing.finish_reason)
        proto.closed_time.FromMicroseconds(entry.closing.closed_us)
    return proto
