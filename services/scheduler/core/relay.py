"""What gateway streams are to be told; who follows a request hears nothing that its owner has not heard."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from services.scheduler.core.notices import Sync

if TYPE_CHECKING:
    from services.scheduler.core.notices import Notice


class _Waiting(NamedTuple):
    number: int  # of the owner's word that lets it go
    stream: str
    request_id: int
    notice: Notice


class Relay:
    """Notices by stream, in order, and those that wait for an owner's word.

    The owner closes a request with what it has heard. A follower that had heard more, of a scheduler that
    then died, would have seen tokens that nobody bills: so owners are asked for their word.
    """

    def __init__(self) -> None:
        self._out: dict[str, list[Notice]] = {}
        self._waiting: dict[str, deque[_Waiting]] = {}  # owner's stream -> in the order of their numbers
        self._asked: dict[str, int] = {}  # stream that gives its word -> number of the last one asked for
        self._asking: set[str] = set()

    def trust(self, stream: str) -> None:
        """Ask this stream for its word from now on; one that gives none is not waited for."""
        self._asked[stream] = 0

    def tell(self, stream: str, notice: Notice) -> None:
        """Tell a stream, after all that it was told before."""
        self._out.setdefault(stream, []).append(notice)

    def tell_after(self, owner: str, stream: str, request_id: int, notice: Notice) -> None:
        """Tell a follower once the owner has heard all that it has been told by now."""
        if owner not in self._asked:
            self.tell(stream, notice)
            return
        waiting = self._waiting.setdefault(owner, deque())
        waiting.append(_Waiting(self._asked[owner] + 1, stream, request_id, notice))
        self._asking.add(owner)

    def heard(self, owner: str, number: int) -> None:
        """An owner gives its word: it has taken in all that came before it was asked."""
        waiting = self._waiting.get(owner, ())
        while waiting and waiting[0].number <= number:
            one = waiting.popleft()
            self.tell(one.stream, one.notice)

    def withdraw(self, request_id: int, owner: str | None) -> dict[str, list[Notice]]:
        """Take back what waits for an owner's word about a request, by follower."""
        withdrawn: dict[str, list[Notice]] = {}
        if owner is None or owner not in self._waiting:
            return withdrawn
        waiting = self._waiting[owner]
        for one in waiting:
            if one.request_id == request_id:
                withdrawn.setdefault(one.stream, []).append(one.notice)
        self._waiting[owner] = deque(one for one in waiting if one.request_id != request_id)
        return withdrawn

    def hand_over(self, request_id: int, before: str | None, owner: str) -> list[Notice]:
        """Let what waits for the word of an earlier owner wait for this one's; return what is its own."""
        waiting = self.withdraw(request_id, before)
        own = waiting.pop(owner, [])
        for stream, notices in waiting.items():
            for notice in notices:
                self.tell_after(owner, stream, request_id, notice)
        return own

    def forget(self, stream: str) -> None:
        """A stream is gone for good."""
        self._asked.pop(stream, None)
        self._waiting.pop(stream, None)
        self._asking.discard(stream)

    def take(self) -> dict[str, list[Notice]]:
        """Return what streams are told now, questions included."""
        for owner in self._asking:
            self._asked[owner] += 1
            self.tell(owner, Sync(self._asked[owner]))
        self._asking.clear()
        out, self._out = self._out, {}
        return out
