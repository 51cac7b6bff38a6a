"""Delivery: any number of readers a request, each with its own place; the sequence waits for none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.gateway.core.choice import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.gateway.core.choice import ChoiceAssembler, Piece, TokenRecord

_TOKEN_BYTES, _ALTERNATIVE_BYTES = 32, 48


def _nobody() -> None:
    pass


class Reader:
    """What one client has yet to read: bounded in bytes and in time; what waits coalesces.

    It holds no output of its own, only places in the choices' records.
    """

    def __init__(
        self, from_index: Sequence[int] = (), *, timeout_s: float = 30.0, max_bytes: int = 4 << 20
    ) -> None:
        """`from_index` is the first token wanted: of every choice, or one for each."""
        self.closed = False
        # The client has all it will take: nobody need watch it any more.
        self.left = False
        self.wake: Callable[[], None] = _nobody
        self.from_index = tuple(from_index)
        self._cursors: list[Cursor] = []
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._bytes = 0
        self._asked = False
        self._unread_since: float | None = None

    def bind(self, choices: Sequence[ChoiceAssembler]) -> None:
        """Follow these choices."""
        starts = self.from_index if len(self.from_index) > 1 else self.from_index * len(choices)
        for number, choice in enumerate(choices):
            self._cursors.append(Cursor(choice, starts[number] if number < len(starts) else 0))

    def take(self, now: float) -> list[Piece]:
        """Everything not yet read; empty while there is nothing, or, once `closed`, when all is said."""
        self._asked = True
        self._unread_since = None
        pieces = [piece for cursor in self._cursors if (piece := cursor.take())]
        if pieces:
            self._bytes = 0
        elif self.closed:
            # What was taken last, and the end, are still to be read.
            self._unread_since = now
        return pieces

    def offer(self, record: TokenRecord, now: float) -> bool:
        """Tell of a new token; False when too much is left unread."""
        self.wake()
        if not self._asked:
            return True
        if self._unread_since is None:
            self._unread_since = now
        self._bytes += _TOKEN_BYTES + len(record.text) + _ALTERNATIVE_BYTES * len(record.top)
        return self._bytes <= self._max_bytes

    def close(self, now: float) -> None:
        """Nothing more will come."""
        self.closed = True
        if self._unread_since is None:
            self._unread_since = now
        self.wake()

    def stalled(self, now: float) -> bool:
        """Whether something has waited unread for too long."""
        return self._unread_since is not None and now - self._unread_since >= self._timeout_s
