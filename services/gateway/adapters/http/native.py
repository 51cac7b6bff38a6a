"""The native HTTP face: generations as JSON or server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from services.gateway.adapters.http import native_json
from services.gateway.adapters.http.errors import error_response, native_error
from services.gateway.adapters.http.wire import (
    EventOutlet,
    arrival,
    check_query,
    event,
    idempotency_key,
    json_response,
    open_events,
    read_json,
    takes_events,
    wants_events,
)
from services.gateway.core.ids import format_id, parse_reference
from services.gateway.core.validation import parse_generation, parse_start, start_of_each

if TYPE_CHECKING:
    from services.gateway.adapters.keys import KeyRing
    from services.gateway.app.front import Front
    from services.gateway.app.reading import Reading
    from services.gateway.core.choice import Piece

_LAST_EVENT = "Last-Event-ID"


class NativeFace:
    """`/v1/generations`."""

    def __init__(self, front: Front, keys: KeyRing) -> None:
        self._front = front
        self._keys = keys

    def routes(self) -> list[web.RouteDef]:
        """Paths and their handlers."""
        return [
            web.post("/v1/generations", self.create),
            web.get("/v1/generations/{id}", self.get, allow_head=False),
            web.delete("/v1/generations/{id}", self.cancel),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Run one generation."""
        arrived = arrival()
        tenant = self._keys.authenticate(request.headers.get("Authorization"))
        check_query(request)
        key = idempotency_key(request)
        spec = parse_generation(await read_json(request))
        reading = await self._front.start(tenant, spec, arrived, key)
        try:
            if wants_events(request):
                return await _stream(request, reading)
            return await _whole(request, reading)
        finally:
            reading.leave()

    async def get(self, request: web.Request) -> web.StreamResponse:
        """State and, when finished, the result; with `from`, a stream from that token on."""
        arrived = arrival()
        tenant = self._keys.authenticate(request.headers.get("Authorization"))
        check_query(request, "from")
        reference = parse_reference(request.match_info["id"])
        if "from" not in request.query:
            return json_response(native_json.snapshot(*await self._front.get(tenant, reference)))
        if not takes_events(request):
            raise web.HTTPNotAcceptable(reason="with `from` the answer is text/event-stream")
        start, field = _start(request)
        reading = await self._front.attach(tenant, reference, start, arrived, field)
        try:
            return await _stream(request, reading, start)
        finally:
            reading.leave()

    async def cancel(self, request: web.Request) -> web.Response:
        """End a generation."""
        tenant = self._keys.authenticate(request.headers.get("Authorization"))
        check_query(request)
        request_id, state = await self._front.cancel(tenant, parse_reference(request.match_info["id"]))
        return json_response({"requestId": format_id(request_id), "state": state.label})


def _start(request: web.Request) -> tuple[tuple[int, ...], str]:
    """Where to start, and what said so: a browser that reconnects repeats its URL and adds where it was."""
    last = request.headers.get(_LAST_EVENT)
    if last:
        return parse_start(last, _LAST_EVENT), _LAST_EVENT
    return parse_start(request.query["from"], "from"), "from"


async def _stream(request: web.Request, reading: Reading, start: tuple[int, ...] = ()) -> web.StreamResponse:
    accepted = reading.accepted
    following = list(start_of_each(start, len(reading.choices), "from"))
    response = await open_events(request, accepted.request_id)
    await response.write(event("accepted", native_json.accepted(accepted)))

    def token(piece: Piece) -> bytes:
        following[piece.choice] = piece.index + piece.count
        return event("token", native_json.token(piece, accepted), ",".join(map(str, following)))

    await reading.relay(EventOutlet(request, response, token))
    closed = await reading.ended()
    error = reading.error
    last = event("error", native_error(error)) if error else event("done", native_json.done(closed))
    await response.write(last)
    await response.write_eof()
    return response


async def _whole(request: web.Request, reading: Reading) -> web.Response:
    closed = await reading.ended()
    if error := reading.error:
        response = error_response(request, error)
        response.headers["x-request-id"] = format_id(reading.accepted.request_id)
        return response
    return json_response(native_json.whole(reading, closed), reading.accepted.request_id)
