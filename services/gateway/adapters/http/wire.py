"""Bytes in and out: bodies, JSON and server-sent events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web
from pydantic_core import to_json

from kit.errors import invalid
from services.gateway.app.generations import Arrival
from services.gateway.core.ids import format_id
from services.gateway.core.validation import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable

_EVENT_STREAM = "text/event-stream"


def json_bytes(value: object) -> bytes:
    """Compact JSON."""
    return to_json(value)


def arrival() -> Arrival:
    """Now."""
    return Arrival(time.monotonic())


async def read_json(request: web.Request) -> object:
    """The body as JSON; refuses another content type, and the headers of a later version."""
    if "Idempotency-Key" in request.headers:
        raise invalid("Idempotency-Key", "Idempotency-Key is not supported yet; leave it out")
    if request.content_type != "application/json":
        raise invalid("Content-Type", "Content-Type must be application/json")
    return parse_json(await request.read())


def check_query(request: web.Request, *allowed: str) -> None:
    """Refuse query parameters that mean nothing here."""
    for name in request.query:
        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise invalid(name[:64], f"query parameters of this path: {known}")


def wants_events(request: web.Request) -> bool:
    """Whether the caller asked for a stream."""
    return any(
        part.partition(";")[0].strip().lower() == _EVENT_STREAM
        for part in request.headers.get("Accept", "").split(",")
    )


def json_response(value: object, request_id: int | None = None) -> web.Response:
    """A whole answer."""
    response = web.Response(body=json_bytes(value), content_type="application/json")
    if request_id is not None:
        response.headers["x-request-id"] = format_id(request_id)
    return response


def event(name: str, value: object) -> bytes:
    """A named server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(value))


def data(value: object) -> bytes:
    """An unnamed server-sent event."""
    return b"data: %b\n\n" % to_json(value)


async def open_events(request: web.Request, request_id: int) -> web.StreamResponse:
    """Send the headers of a stream: the request is accepted."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
            "x-request-id": format_id(request_id),
        }
    )
    await response.prepare(request)
    return response


async def send(response: web.StreamResponse, frames: Iterable[bytes]) -> None:
    """Write several frames at once."""
    await response.write(b"".join(frames))
