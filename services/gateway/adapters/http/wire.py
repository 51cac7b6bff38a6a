"""Bytes in and out: bodies, JSON and server-sent events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from pydantic_core import to_json

from kit.errors import invalid
from services.gateway.app.generations import Arrival
from services.gateway.core.ids import format_id, parse_key
from services.gateway.core.validation import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from services.gateway.core.choice import Piece
    from services.gateway.core.ids import Key

_EVENT_STREAM = "text/event-stream"
_KEY_HEADER = "Idempotency-Key"


def json_bytes(value: object) -> bytes:
    """Compact JSON."""
    return to_json(value)


def arrival() -> Arrival:
    """Now."""
    return Arrival(time.monotonic())


async def read_json(request: web.Request) -> object:
    """The body as JSON; refuses another content type."""
    if request.content_type != "application/json":
        raise invalid("Content-Type", "Content-Type must be application/json")
    return parse_json(await request.read())


def idempotency_key(request: web.Request) -> Key | None:
    """The caller's own name for the generation it asks for."""
    given = request.headers.getall(_KEY_HEADER, [])
    if len(given) > 1:
        raise invalid(_KEY_HEADER, f"{_KEY_HEADER} must be given once")
    return parse_key(given[0], _KEY_HEADER) if given else None


def check_query(request: web.Request, *allowed: str) -> None:
    """Refuse query parameters that mean nothing here."""
    for name in request.query:
        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise invalid(name[:64], f"query parameters of this path: {known}")


def wants_events(request: web.Request) -> bool:
    """Whether the caller asked for a stream."""
    return _EVENT_STREAM in _accepted_types(request)


def takes_events(request: web.Request) -> bool:
    """Whether the caller can take a stream."""
    return not _accepted_types(request).isdisjoint({"", "*/*", "text/*", _EVENT_STREAM})


def json_response(value: object, request_id: int | None = None) -> web.Response:
    """A whole answer."""
    response = web.Response(body=json_bytes(value), content_type="application/json")
    if request_id is not None:
        response.headers["x-request-id"] = format_id(request_id)
    return response


def event(name: str, value: object, mark: str = "") -> bytes:
    """A named server-sent event; `mark` is what a client that reconnects says in Last-Event-ID."""
    identity = f"id: {mark}\n" if mark else ""
    return b"%bevent: %b\ndata: %b\n\n" % (identity.encode(), name.encode(), to_json(value))


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


def _accepted_types(request: web.Request) -> set[str]:
    accepted = request.headers.get("Accept", "").split(",")
    return {part.partition(";")[0].strip().lower() for part in accepted}


async def send(response: web.StreamResponse, frames: Iterable[bytes]) -> None:
    """Write several frames at once."""
    await response.write(b"".join(frames))


class EventOutlet:
    """An `Outlet`: an event a piece, on a response whose headers are sent."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, encode: Callable[[Piece], bytes]
    ) -> None:
        self._transport = request.transport
        self._response = response
        self._chunked = hdrs.TRANSFER_ENCODING in response.headers
        self._encode = encode

    @property
    def clear(self) -> bool:
        """Whether the connection stands and its buffer is empty; under TLS, the buffer above it."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()

    def put(self, pieces: Sequence[Piece]) -> None:
        """Write straight to the connection: the library's way would cost as much again."""
        assert self._transport is not None
        events = b"".join(map(self._encode, pieces))
        self._transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events)

    async def write(self, pieces: Sequence[Piece]) -> None:
        """Write, and wait while too much is left in the buffer."""
        await send(self._response, map(self._encode, pieces))
