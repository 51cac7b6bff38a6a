"""Clients that cost as little as they can: one stream each, told of token ids as events arrive."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import TYPE_CHECKING, Any
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
    at = urlsplit(stand.http_url)
    body = json.dumps(
        {"model": SMOLLM2, "promptTokenIds": _prompt(), "maxOutputTokens": output, "ignoreEos": True}
    )
    head = (
        f"POST /v1/generations HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: Bearer {stand.api_key}\r\n"
        "Accept: text/event-stream\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write((head + body).encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError((await reader.read()).decode())
    async for line in reader:
        if line.startswith(b"data: ") and b'"tokenIds":[' in line:
            hear(json.loads(line[6:])["tokenIds"])
    writer.close()


def _prompt() -> list[int]:
    source = random.Random(next(_numbers))
    return [source.randrange(1_000, 40_000) for _ in range(PROMPT)]
