"""The native HTTP face: generations as JSON or server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from kit.errors import invalid
from services.gateway.adapters.http import native_json
from services.gateway.adapters.http.errors import error_response, native_error
from services.gateway.adapters.http.wire import (
    arrival,
    check_query,
    event,
    json_response,
    open_events,
    read_json,
    send,
    wants_events,
)
from services.gateway.core.ids import format_id, parse_id
from services.gateway.core.validation import parse_generation

if TYPE_CHECKING:
    from services.gateway.adapters.keys import KeyRing
    from services.gateway.app.generations import Generations
    from services.gateway.app.reading import Reading


class NativeFace:
    """`/v1/generations`."""

    def __init__(self, generations: Generations, keys: KeyRing) -> None:
        self._generations = generations
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
        spec = parse_generation(await read_json(request))
        reading = await self._generations.start(tenant, spec, arrived)
        try:
            if wants_events(request):
                return await _stream(request, reading)
            return await _whole(request, reading)
        finally:
            reading.leave()

    async def get(self, request: web.Request) -> web.Response:
        """State and, when finished, the result."""
        tenant = self._keys.authenticate(request.headers.get("Authorization"))
        if "from" in request.query:
            raise invalid("from", "following a generation is not supported yet; leave `from` out")
        check_query(request)
        request_id = parse_id(request.match_info["id"])
        return json_response(
            native_json.snapshot(request_id, await self._generations.get(tenant, request_id))
        )

    async def cancel(self, request: web.Request) -> web.Response:
        """End a generation."""
        tenant = self._keys.authenticate(request.headers.get("Authorization"))
        check_query(request)
        request_id = parse_id(request.match_info["id"])
        state = await self._generations.cancel(tenant, request_id)
        return json_response({"requestId": format_id(request_id), "state": state.label})


async def _stream(request: web.Request, reading: Reading) -> web.StreamResponse:
    accepted = reading.accepted
    response = await open_events(request, accepted.request_id)
    await response.write(event("accepted", native_json.accepted(accepted)))
    while pieces := await reading.take():
        await send(
            response,
            [event("token", native_json.token(piece, accepted)) for piece in pieces],
        )
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
