"""One gateway's lane stream on the way out: a bounded queue and one writer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tokenloom.api.scheduler.v1 import scheduler_pb2


class Session:
    """Messages waiting for one gateway. One that does not read is ended at `limit`; nobody waits for it."""

    def __init__(self, owner: str, limit: int, *, says_open: bool = False, says_synced: bool = False) -> None:
        """`says_open`: the gateway says of what callers are told; `says_synced`: what it has heard."""
        self.owner, self.says_open, self.says_synced = owner, says_open, says_synced
        self.ended = asyncio.Event()
        self.overflowed = False
        self._limit = limit
        self._waiting: deque[scheduler_pb2.LaneResponse] = deque()
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()

    def send(self, message: scheduler_pb2.LaneResponse, *, first: bool = False) -> None:
        """Queue a message, before all that wait if it is `first`; past the bound the stream ends instead."""
        if self.ended.is_set():
            return
        if len(self._waiting) >= self._limit:
            self.overflowed = True
            self.end()
            return
        if first:
            self._waiting.appendleft(message)
        else:
            self._waiting.append(message)
        self._flushed.clear()
        self._wake.set()

    def end(self) -> None:
        """End the stream; what is not written yet is lost."""
        self.ended.set()
        self._waiting.clear()
        self._flushed.set()

    async def flushed(self) -> None:
        """Return once everything queued has been written, or the stream ended."""
        await self._flushed.wait()

    async def write_all(self, write: Callable[[scheduler_pb2.LaneResponse], Awaitable[None]]) -> None:
        """Write messages as they come, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await write(self._waiting.popleft())
            self._flushed.set()
