"""One stream of events over HTTP or gRPC, told in the same words; whatever breaks it is `Broken`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc

from tests.support import sse
from tokenloom.client import Accepted, Client, Done, FinishReason, TokenloomError, Tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

Event = tuple[str, dict[str, Any]]
# Longer than any fault lasts: a stream that is silent for so long is a finding.
_SILENCE_S = 120.0
_CONNECT_S = 5.0
# The reasons of a status that no service of ours wrote.
_TRANSPORT = frozenset({"UNAVAILABLE", "UNKNOWN", "CANCELLED", "INTERNAL"})
# What a caller may be told to wait by.
WAIT = frozenset(
    {
        "NO_CAPACITY", "DRAINING", "USAGE_BACKPRESSURE", "IDEMPOTENCY_UNAVAILABLE", "QUEUE_FULL",
        "KV_EXHAUSTED", "DEADLINE_INFEASIBLE",
    }
)  # fmt: skip
_KEYS = {
    "maxOutputTokens": "max_output_tokens",
    "ignoreEos": "ignore_eos",
    "temperature": "temperature",
    "seed": "seed",
    "stop": "stop",
    "n": "n",
    "logprobs": "logprobs",
    "resume": "resume",
}


class Broken(Exception):  # noqa: N818
    """The connection ended without a last word."""


class Refused(Exception):  # noqa: N818
    """The request was refused before it was accepted."""

    def __init__(self, reason: str, retry_after_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Gateway:
    """Where one gateway listens, and the key it takes."""

    http_url: str
    grpc_target: str
    api_key: str


class Wire:
    """Both faces of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {gateway.api_key}"},
            timeout=timeout,
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )

    async def close(self) -> None:
        await self._http.close()

    async def http(self, body: Mapping[str, Any], key: str | None) -> AsyncIterator[Event]:
        """`POST /v1/generations` as server-sent events."""
        headers = {"Accept": "text/event-stream"} | ({"Idempotency-Key": key} if key else {})
        async for event in self._events("POST", "/v1/generations", headers=headers, json=dict(body)):
            yield event

    async def attach(self, reference: str, index: int) -> AsyncIterator[Event]:
        """`GET /v1/generations/{id}?from=N`."""
        headers = {"Accept": "text/event-stream"}
        path = f"/v1/generations/{reference}"
        async for event in self._events("GET", path, headers=headers, params={"from": str(index)}):
            yield event

    async def cancel(self, reference: str) -> int:
        """`DELETE /v1/generations/{id}`; the status."""
        try:
            async with self._http.delete(f"{self.gateway.http_url}/v1/generations/{reference}") as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Broken(type(error).__name__) from None

    async def grpc(self, body: Mapping[str, Any], key: str | None) -> AsyncIterator[Event]:
        """`Generate`."""
        options: dict[str, Any] = {_KEYS[name]: value for name, value in body.items() if name in _KEYS}
        if key:
            options["idempotency_key"] = key
        deadline_s = body["deadlineMs"] / 1000 if "deadlineMs" in body else None
        said = False
        async with Client(self.gateway.grpc_target, self.gateway.api_key) as client:
            call = client.generate(body["model"], body["prompt"], deadline_s=deadline_s, **options)
            try:
                async for event in call:
                    said = True
                    yield _plain(event)
            except TokenloomError as error:
                if error.reason in _TRANSPORT:
                    raise Broken(f"gRPC {error.reason}") from None
                if not said:
                    raise Refused(error.reason, error.retry_after) from None
                # Our own clock's deadline, or the SDK could not come back: neither is the request's end.
                follows = key is not None or bool(body.get("resume"))
                if error.reason == "DEADLINE_EXCEEDED" or (follows and error.reason in WAIT):
                    raise Broken(f"gRPC {error.reason}") from None
                yield "error", {"reason": error.reason}

    async def _events(self, method: str, path: str, **options: Any) -> AsyncIterator[Event]:
        try:
            async with self._http.request(method, f"{self.gateway.http_url}{path}", **options) as response:
                if response.status != 200:
                    raise _refused(await response.json(), response)
                async for name, data in sse.events(response):
                    yield name, data["error"] if name == "error" else data
        except (aiohttp.ClientError, TimeoutError, grpc.RpcError) as error:
            raise Broken(type(error).__name__) from None


def _refused(body: dict[str, Any], response: aiohttp.ClientResponse) -> Refused:
    after = response.headers.get("Retry-After")
    return Refused(body["error"]["reason"], float(after) if after else None)


def _plain(event: Accepted | Tokens | Done) -> Event:
    match event:
        case Accepted():
            return "accepted", {"requestId": event.request_id}
        case Tokens():
            ids = list(event.token_ids)
            return "token", {
                "choice": event.choice,
                "index": event.index,
                "count": event.count,
                "tokenIds": ids,
                "text": event.text,
            }
        case Done():
            return "done", {
                "finishReason": FinishReason.Name(event.finish_reason).removeprefix("FINISH_REASON_").lower(),
                "inputTokens": event.input_tokens,
                "outputTokens": event.output_tokens,
            }
