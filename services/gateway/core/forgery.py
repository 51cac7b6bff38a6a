"""Keeps the text of special tokens inside messages from becoming special tokens.

Before rendering, each occurrence in a message is replaced by a marker that no message contains; after
rendering, the text is split there again, and what was hidden is encoded as ordinary text. A conversation
without such text is rendered and encoded in one piece.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from services.gateway.core.spec import ChatMessage

_MARKER_START = "\ue000"
_MARKER_END = "\ue001"
_ANY_MARKER = re.compile(f"{_MARKER_START}([0-9]+):")


class Part(NamedTuple):
    """A stretch of rendered text; `ordinary` when special tokens must not be recognised in it."""

    text: str
    ordinary: bool


class Disguise:
    """Hides special tokens in one conversation and finds them again in its rendering."""

    def __init__(self, special_tokens: Collection[str], messages: Sequence[ChatMessage]) -> None:
        self._prefix = f"{_MARKER_START}{_unused_number(messages)}:"
        self._hidden: list[str] = []
        self.messages = list(messages)
        if special_tokens:
            longest_first = sorted(special_tokens, key=len, reverse=True)
            pattern = re.compile("|".join(map(re.escape, longest_first)))
            self.messages = [self._hide(pattern, message) for message in messages]

    def parts(self, rendered: str) -> Iterator[Part]:
        """The rendering, split where something was hidden."""
        if not self._hidden:
            yield Part(rendered, ordinary=False)
            return
        marker = re.compile(f"{re.escape(self._prefix)}([0-9]+){_MARKER_END}")
        for position, text in enumerate(marker.split(rendered)):
            ordinary = bool(position % 2)
            yield Part(self._hidden[int(text)] if ordinary else text, ordinary)

    def _hide(self, pattern: re.Pattern[str], message: ChatMessage) -> ChatMessage:
        content = pattern.sub(self._mark, message.content)
        return message.model_copy(update={"content": content})

    def _mark(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        return f"{self._prefix}{len(self._hidden) - 1}{_MARKER_END}"


def _unused_number(messages: Sequence[ChatMessage]) -> int:
    """A number that no text in the messages could pass off as a marker's."""
    used = {number for message in messages for number in _ANY_MARKER.findall(message.content)}
    number = 0
    while str(number) in used:
        number += 1
    return number
