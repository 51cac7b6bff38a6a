"""Clients that cost as little as they can: one stream each, told of token ids as events arrive."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import grpc

from tests.models import SMOLLM2
from tokenloom.api.inference.v1 import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.stand import Stand

PROMPT = 16
_numbers = itertools.count()


async def over_grpc(stand: Stand, output: int, hear: Callable[[list[int]], None]) -> None:
    """One generation of `output` tokens."""
    async with grpc.aio.insecure_channel(stand.grpc_target) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(
            model=SMOLLM2,
            prompt_token_ids=inference_pb2.TokenIds(ids=_prompt()),
            max_output_tokens=output,
            ignore_eos=True,
        )
        call = stub.Generate(request, metadata=(("authorization", f"Bearer {stand.api_key}"),))
        while (response := await call.read()) is not grpc.aio.EOF:
            if response.HasField("tokens"):
                hear(list(response.tokens.token_ids))


async def over_http(stand: Stand, output: int, hear: Callable[[list[int]], None]) -> None:
    """The same over server-sent events, on a bare socket."""
    host, _, port = urlsplit(stand.http_url).netloc.partition(":")
    body = json.dumps(
        {"model": SMOLLM2, "promptTokenIds": _prompt(), "maxOutputTokens": output, "ignoreEos": True}
    )
    head = (
        f"POST /v1/generations HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {stand.api_key}\r\n"
        "Accept: text/event-stream\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    heard = _Heard((head + body).encode(), hear)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: heard, host, int(port))
    try:
        await heard.ended
    finally:
        transport.abort()


class _Heard(asyncio.Protocol):
    """One request, and the token ids of the events that answer it."""

    def __init__(self, request: bytes, hear: Callable[[list[int]], None]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._request, self._hear = request, hear
        self._head, self._rest = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head = self._head or data
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if ids := event.partition(b'"tokenIds":[')[2].partition(b"]")[0]:
                self._hear(list(map(int, ids.split(b","))))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended.done():  # its caller was cancelled
            return
        if exc or not self._head.startswith(b"HTTP/1.1 200 "):
            self.ended.set_exception(exc or RuntimeError(self._rest.decode()))
        else:
            self.ended.set_result(None)


def _prompt() -> list[int]:
    source = random.Random(next(_numbers))
    return [source.randrange(1_000, 40_000) for _ in range(PROMPT)]
