"""`/v1/usage`: the caller's own ledger rows."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kit.errors import ServiceError, invalid
from services.gateway.adapters.http.wire import check_query, json_response
from services.gateway.core.ids import format_id, parse_id
from services.gateway.core.outcome import FinishReason
from tokenloom.api.usage.v1 import usage_pb2

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from services.gateway.adapters.keys import KeyRing
    from services.gateway.adapters.usage_client import UsageClient

_MAX_PAGE = 1000
_PAGE_SIZE = re.compile("[0-9]{1,4}")


class UsageFace:
    """Reads the ledger for the caller's tenant."""

    def __init__(self, client: UsageClient, keys: KeyRing) -> None:
        self._client = client
        self._keys = keys

    def routes(self) -> list[web.RouteDef]:
        """Paths and their handlers."""
        return [web.get("/v1/usage", self.list, allow_head=False)]

    async def list(self, request: web.Request) -> web.Response:
        """Rows of one request, or of a time, newest first."""
        tenant = self._keys.authenticate(request.headers.get("Authorization"))
        check_query(request, "requestId", "from", "to", "pageSize", "pageToken")
        query = request.query
        asked = usage_pb2.ListUsageRequest(
            tenant_id=tenant.tenant_id,
            request_id=_request_id(query["requestId"]) if "requestId" in query else 0,
            page_size=_page_size(query.get("pageSize")),
            page_token=query.get("pageToken", ""),
        )
        start, end = (_moment(query[name], name) if name in query else None for name in ("from", "to"))
        if start:
            asked.start_time.FromDatetime(start)
        if end:
            asked.end_time.FromDatetime(end)
        if start and end and end < start:
            raise invalid("to", "to must not be before from")
        page = await self._client.list(asked)
        body: dict[str, Any] = {"data": [row_json(row) for row in page.rows]}
        if page.next_page_token:
            body["nextPageToken"] = page.next_page_token
        return json_response(body)


def row_json(row: usage_pb2.UsageRow) -> dict[str, Any]:
    """A ledger row as JSON."""
    return {
        "requestId": format_id(row.request_id),
        "tenantId": row.tenant_id,
        "modelVersion": row.model_version,
        "tokenizerVersion": row.tokenizer_version,
        "adapter": row.adapter,
        "runtimeRevision": row.runtime_revision,
        "inputTokens": row.input_tokens,
        "cachedTokens": row.cached_tokens,
        "outputTokens": row.output_tokens,
        "billableTokens": row.billable_tokens,
        "finishReason": FinishReason(row.finish_reason).label if row.finish_reason else None,
        "queueMs": row.queue_ms,
        "ttftMs": row.ttft_ms,
        "totalMs": row.total_ms,
        "openedTime": _time_json(row.opened_time) if row.HasField("opened_time") else None,
        "closedTime": _time_json(row.closed_time) if row.HasField("closed_time") else None,
        "state": usage_pb2.RowState.Name(row.state).removeprefix("ROW_STATE_").lower(),
        "ownerEpoch": row.owner_epoch,
    }


def _time_json(timestamp: Timestamp) -> str:
    return timestamp.ToJsonString()


def _moment(text: str, field: str) -> datetime:
    try:
        # A bare `+` of an offset arrives as a space.
        moment = datetime.fromisoformat(text.replace(" ", "+"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise invalid(field, f"{field} must be an RFC 3339 time, e.g. 2026-01-31T12:00:00Z") from None


def _request_id(text: str) -> int:
    try:
        return parse_id(text)
    except ServiceError:
        raise invalid(
            "requestId", "requestId must be the id of a generation, e.g. gen-00000000000001f4"
        ) from None


def _page_size(text: str | None) -> int:
    if text is None:
        return 0
    if not _PAGE_SIZE.fullmatch(text) or not 1 <= int(text) <= _MAX_PAGE:
        raise invalid("pageSize", f"pageSize must be an integer from 1 to {_MAX_PAGE}")
    return int(text)
