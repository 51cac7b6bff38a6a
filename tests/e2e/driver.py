"""A client over plain HTTP/SSE that keeps everything it saw, so that tests can compare it with the ledger."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support import sse

LOCAL_TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass
class Outcome:
    """All that one stream said."""

    accepted: dict[str, Any] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    stamps: list[float] = field(default_factory=list)
    done: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    _grew: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def request_id(self) -> str:
        return str(self.accepted["requestId"])

    @property
    def ids(self) -> list[int]:
        return self.token_ids.get(0, [])

    @property
    def text(self) -> str:
        return self.texts.get(0, "")

    async def reached(self, tokens: int) -> None:
        """Wait until the first choice has so many tokens."""
        while len(self.ids) < tokens:
            self._grew.clear()
            await self._grew.wait()

    def take(self, event: str, data: dict[str, Any]) -> None:
        """Record one event; a repeated or missing index fails here."""
        if event == "accepted":
            assert not self.accepted, "accepted twice"
            self.accepted = data
        elif event == "token":
            ids = self.token_ids.setdefault(data.get("choice", 0), [])
            assert data["index"] == len(ids), f"index {data['index']} after {len(ids)} tokens"
            assert data["count"] == len(data["tokenIds"])
            ids.extend(data["tokenIds"])
            choice = data.get("choice", 0)
            self.texts[choice] = self.texts.get(choice, "") + data["text"]
            self.stamps.append(time.monotonic())
            self._grew.set()
        else:
            assert self.done is self.error is None, "two terminal events"
            if event == "done":
                self.done = data
            else:
                assert event == "error", event
                self.error = data["error"]


class Driver:
    """Talks to one gateway over HTTP."""

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {api_key}"}
        self.session = aiohttp.ClientSession(
            headers=self.headers,
            timeout=LOCAL_TIMEOUT,
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=2**20,
        )

    async def __aenter__(self) -> Driver:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.session.close()

    async def stream(self, outcome: Outcome | None = None, **body: Any) -> Outcome:
        """Run one generation to its end; a given `outcome` can be watched meanwhile."""
        outcome = outcome or Outcome()
        headers = {"Accept": "text/event-stream"}
        async with self.session.post(f"{self.url}/v1/generations", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            async for event, data in sse.events(response):
                outcome.take(event, data)
        assert outcome.done or outcome.error, "the stream ended without a terminal event"
        return outcome

    async def refused(self, body: object, path: str = "/v1/generations") -> tuple[int, dict[str, Any]]:
        """Send a body that must be refused; returns the status and the error."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with self.session.post(f"{self.url}{path}", data=data, headers=headers) as response:
            return response.status, (await response.json())["error"]

    async def cancel(self, request_id: str) -> int:
        async with self.session.delete(f"{self.url}/v1/generations/{request_id}") as response:
            return response.status

    async def usage(self, **query: str) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.url}/v1/usage", params=query) as response:
            assert response.status == 200, await response.text()
            return list((await response.json())["data"])

    async def closed_row(self, request_id: str, timeout_s: float = 10) -> dict[str, Any]:
        """Wait until billing has the request's closed row."""
        until = time.monotonic() + timeout_s
        while True:
            rows = await self.usage(requestId=request_id)
            if rows and rows[0].get("finishReason"):
                assert len(rows) == 1
                return rows[0]
            assert time.monotonic() < until, f"no closed row for {request_id}: {rows}"
            await asyncio.sleep(0.05)
