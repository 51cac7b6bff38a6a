"""What a caller may ask of the ledger, and the token that continues an answer."""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import NamedTuple

from kit.errors import invalid

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
_TOKEN = struct.Struct(">qq")


class Position(NamedTuple):
    """Where a page ended: rows are ordered by opening time and request, newest first."""

    opened_us: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Query:
    """A checked question about one tenant's rows; None means no bound."""

    tenant_id: str
    request_id: int | None
    start_us: int | None
    end_us: int | None
    page_size: int
    after: Position | None


def query(
    *,
    tenant_id: str,
    request_id: int,
    start_us: int | None,
    end_us: int | None,
    page_size: int,
    page_token: str,
) -> Query:
    """Check the fields of a ListUsageRequest; refusals name the field."""
    if not tenant_id:
        raise invalid("tenant_id", "must not be empty")
    if request_id < 0:
        raise invalid("request_id", "must be 0 (all) or a request's id")
    if not 0 <= page_size <= MAX_PAGE_SIZE:
        raise invalid("page_size", f"allowed: 1 to {MAX_PAGE_SIZE}, or 0 for {DEFAULT_PAGE_SIZE}")
    if start_us is not None and end_us is not None and end_us < start_us:
        raise invalid("end_time", "must not be before start_time")
    after = _read_token(page_token) if page_token else None
    return Query(tenant_id, request_id or None, start_us, end_us, page_size or DEFAULT_PAGE_SIZE, after)


def page_token(position: Position) -> str:
    """The opaque token that continues after `position`."""
    return base64.urlsafe_b64encode(_TOKEN.pack(*position)).decode().rstrip("=")


def _read_token(token: str) -> Position:
    try:
        raw = base64.b64decode(token + "==", altchars=b"-_", validate=True)
        return Position(*_TOKEN.unpack(raw))
    except (ValueError, binascii.Error, struct.error):
        raise invalid("page_token", "must be the next_page_token of an earlier answer") from None
