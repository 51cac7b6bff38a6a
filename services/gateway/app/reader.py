"""Delivery: one reader per request takes what waits; the sequence never waits for the reader."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from services.gateway.core.choice import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.gateway.core.choice import ChoiceAssembler, NewToken, Piece

_TOKEN_BYTES, _ALTERNATIVE_BYTES = 32, 48


class Reader:
    """What one client has yet to read: bounded in bytes and in time; what waits coalesces."""

    def __init__(self, choices: Sequence[ChoiceAssembler], *, timeout_s: float, max_bytes: int) -> None:
        self.dismissed = False
        # The client has all it will take: nobody need watch it any more.
        self.left = False
        # How to interrupt the task that reads; a face that must say something first sets its own.
        self.turn_away: Callable[[asyncio.Task[object]], object] = asyncio.Task.cancel
        self._cursors = [Cursor(choice) for choice in choices]
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._bytes = 0
        self._unread_since: float | None = None
        self._task: asyncio.Task[object] | None = None
        self._news = asyncio.Event()
        self._closed = False

    async def take(self) -> list[Piece]:
        """Everything not yet read, as soon as there is something; empty once all is said."""
        self._task = asyncio.current_task()
        self._unread_since = None
        while True:
            if pieces := [piece for cursor in self._cursors if (piece := cursor.take())]:
                self._bytes = 0
                return pieces
            if self._closed:
                # What was taken last, and the end, are still to be read.
                self._unread_since = time.monotonic()
                return []
            self._news.clear()
            await self._news.wait()

    def offer(self, token: NewToken, text: str, now: float) -> bool:
        """Tell of a new token; False when the reader has left too much unread."""
        self._news.set()
        if self._task is None:
            return True
        if self._unread_since is None:
            self._unread_since = now
        self._bytes += _TOKEN_BYTES + len(text) + _ALTERNATIVE_BYTES * len(token.top)
        return self._bytes <= self._max_bytes

    def wake(self) -> None:
        """Tell of an end."""
        self._news.set()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        if self._unread_since is None:
            self._unread_since = time.monotonic()
        self._news.set()

    def stalled(self, now: float) -> bool:
        """Whether something has waited unread for too long."""
        return self._unread_since is not None and now - self._unread_since >= self._timeout_s

    def dismiss(self) -> None:
        """Interrupt a reader that does not read."""
        if self._task is not None and not self.dismissed:
            self.dismissed = True
            self.turn_away(self._task)
