"""Stop strings in streamed text: found over any split, holding back only what may still become one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Scan(NamedTuple):
    """What a piece of text made certain, and whether a stop string was completed in it."""

    text: str
    stopped: bool


class _Automaton:
    """Knuth-Morris-Pratt over one stop string: linear in the text, whatever the stop looks like."""

    __slots__ = ("_failure", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._failure = _failure_table(stop)

    def advance(self, piece: str) -> int | None:
        """Consume `piece`; the number of characters up to the first completion, if there is one."""
        stop, failure, matched = self.stop, self._failure, self.matched
        start = 0
        if not matched:
            start = piece.find(stop[0])
            if start < 0:
                return None
        for position in range(start, len(piece)):
            character = piece[position]
            while matched and stop[matched] != character:
                matched = failure[matched - 1]
            if stop[matched] == character:
                matched += 1
                if matched == len(stop):
                    return position + 1
        self.matched = matched
        return None


class StopMatcher:
    """Finds the stop string that is completed first; of several completed at once, the longest.

    The rule looks only at where a stop ends, so the answer is the same for every split of the text. A
    `passing` one stops nowhere: it holds back the same text, and lets it go once a stop is complete.
    """

    def __init__(self, stops: Sequence[str], *, passing: bool = False) -> None:
        self._stops, self._passing = stops, passing
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def feed(self, piece: str) -> Scan:
        """Take new text; return what can no longer be part of a stop, cut before a completed one."""
        if not self._automata:
            return Scan(piece, stopped=False)
        text = self._held + piece
        ends = [(end, -len(a.stop)) for a in self._automata if (end := a.advance(piece)) is not None]
        if ends:
            end, negative_length = min(ends)
            cut = len(self._held) + end
            self._held = ""
            if not self._passing:
                return Scan(text[: cut + negative_length], stopped=True)
            self._automata = [_Automaton(stop) for stop in self._stops]
            return Scan(text[:cut] + self.feed(text[cut:]).text, stopped=False)
        certain = len(text) - max(automaton.matched for automaton in self._automata)
        self._held = text[certain:]
        return Scan(text[:certain], stopped=False)

    def flush(self) -> str:
        """The text held back, once no more will come."""
        held, self._held = self._held, ""
        return held


@lru_cache(maxsize=256)
def _failure_table(stop: str) -> tuple[int, ...]:
    """The longest proper prefix of each prefix that also ends it; the choices of a request share one."""
    table = [0] * len(stop)
    matched = 0
    for position in range(1, len(stop)):
        while matched and stop[matched] != stop[position]:
            matched = table[matched - 1]
        if stop[matched] == stop[position]:
            matched += 1
        table[position] = matched
    return tuple(table)
