"""The OpenAI-compatible face."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kit.errors import Code, ServiceError
from services.gateway.adapters.http.errors import error_response
from services.gateway.adapters.http.wire import (
    EventOutlet,
    arrival,
    check_query,
    data,
    event,
    idempotency_key,
    json_response,
    open_events,
    read_json,
    send,
)
from services.gateway.core.ids import format_id
from services.gateway.core.openai_request import OpenAIRequest, parse_openai
from services.gateway.core.openai_response import OpenAIResponse, error_body, failure

if TYPE_CHECKING:
    from services.gateway.adapters.keys import KeyRing
    from services.gateway.app.front import Front
    from services.gateway.app.ports import Route
    from services.gateway.app.reading import Reading
    from services.gateway.core.openai_request import Face
    from services.gateway.core.outcome import Closed

_DONE = b"data: [DONE]\n\n"


class OpenAIFace:
    """`/v1/chat/completions`, `/v1/completions`, `/v1/models`."""

    def __init__(self, front: Front, keys: KeyRing) -> None:
        self._front = front
        self._keys = keys
        self._started = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        """Paths and their handlers."""
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
            web.get("/v1/models", self.models, allow_head=False),
            web.get("/v1/models/{model}", self.model, allow_head=False),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Continue a conversation."""
        return await self._generate(request, "chat")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Continue a prompt."""
        return await self._generate(request, "completions")

    async def models(self, request: web.Request) -> web.Response:
        """The models that the caller may use."""
        self._keys.authenticate(request.headers.get("Authorization"))
        routes = self._front.models()
        return json_response({"object": "list", "data": [self._model(route) for route in routes]})

    async def model(self, request: web.Request) -> web.Response:
        """One model by name or `name@version`."""
        self._keys.authenticate(request.headers.get("Authorization"))
        name = request.match_info["model"]
        for route in self._front.models():
            if name in {route.name, route.model_version}:
                return json_response(self._model(route))
        raise ServiceError(Code.NOT_FOUND, "NOT_FOUND", "there is no such model", "model")

    async def _generate(self, request: web.Request, face: Face) -> web.StreamResponse:
        arrived = arrival()
        tenant = self._keys.authenticate(request.headers.get("Authorization"))
        check_query(request)
        key = idempotency_key(request)
        asked = parse_openai(await read_json(request), face)
        reading = await self._front.start(tenant, asked.spec, arrived, key)
        try:
            answer = _answer(asked, reading)
            if asked.stream:
                return await _stream(request, asked, reading, answer)
            return await _whole(request, reading, answer)
        finally:
            reading.leave()

    def _model(self, route: Route) -> dict[str, Any]:
        return {
            "id": route.name,
            "object": "model",
            "created": self._started,
            "owned_by": "tokenloom",
            "version": route.model_version,
            "context_length": route.context_length,
            "max_model_len": route.context_length,
            "family": route.family,
        }


def _answer(asked: OpenAIRequest, reading: Reading) -> OpenAIResponse:
    accepted = reading.accepted
    return OpenAIResponse(
        asked,
        format_id(accepted.request_id),
        int(time.time()),
        accepted.model_version,
        accepted.vocabulary,
    )


async def _stream(
    request: web.Request, asked: OpenAIRequest, reading: Reading, answer: OpenAIResponse
) -> web.StreamResponse:
    response = await open_events(request, reading.accepted.request_id)
    await send(response, map(data, answer.opening()))
    await reading.relay(EventOutlet(request, response, lambda piece: data(answer.chunk(piece))))
    closed = await reading.ended()
    if error := _failure(reading, closed):
        await response.write(event("error", error_body(error, closed.finish_reason)))
    else:
        usage = [data(answer.usage_chunk(closed))] if asked.include_usage else []
        await send(response, [*usage, _DONE])
    await response.write_eof()
    return response


async def _whole(request: web.Request, reading: Reading, answer: OpenAIResponse) -> web.Response:
    closed = await reading.ended()
    if error := _failure(reading, closed):
        response = error_response(request, error, finish_reason=closed.finish_reason)
        response.headers["x-request-id"] = format_id(reading.accepted.request_id)
        return response
    return json_response(answer.whole(reading.choices, closed), reading.accepted.request_id)


def _failure(reading: Reading, closed: Closed) -> ServiceError | None:
    return reading.error or failure(closed)
