"""Where a caller stands in a generation that it follows over several streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.api.inference.v1.inference_pb2 import Accepted, Done, Tokens
from tokenloom.errors import TokenloomError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Position:
    """What has been seen: every token once and in order, whichever stream carried it."""

    def __init__(
        self, reference: str = "", start: int | Sequence[int] = 0, choices: int | None = None
    ) -> None:
        """`reference` is empty until it is known; `start` is the first token, of all choices or of each."""
        self.reference = reference
        self.choices = choices if isinstance(start, int) else len(start)
        self.done = False
        self._accepted = False
        self._start = start
        self._next: dict[int, int] = {}
        self._ended: set[int] = set()

    def from_index(self) -> list[int]:
        """The next token of every choice; while nobody knows how many there are, of all alike."""
        return [self._expected(choice) for choice in range(self.choices or 1)]

    def take(self, event: Accepted | Tokens | Done) -> bool:
        """Note an event; False when it was seen before. Raises STREAM_GAP when a token was left out."""
        if isinstance(event, Accepted):
            known, self._accepted = self._accepted, True
            self.reference = event.request_id
            return not known
        if isinstance(event, Done):
            self.done = True
            return True
        expected = self._expected(event.choice)
        if event.index != expected:
            message = f"choice {event.choice} goes on with token {event.index} instead of {expected}"
            raise TokenloomError("INTERNAL", "STREAM_GAP", message)
        if event.choice in self._ended:  # its last words once more
            return False
        self._next[event.choice] = expected + event.count
        if event.finish_reason:
            self._ended.add(event.choice)
        return True

    def _expected(self, choice: int) -> int:
        first = self._start if isinstance(self._start, int) else self._start[choice]
        return self._next.get(choice, first)
