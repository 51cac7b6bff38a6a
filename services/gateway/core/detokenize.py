"""Token ids to text, one token at a time, never half a character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.gateway.core.vocabulary import Vocabulary

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Incremental decoding over the bytes of tokens; its whole state is an unfinished character."""

    __slots__ = ("_bytes", "_strip", "_utf8")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._bytes = vocabulary.text_bytes
        self._strip = vocabulary.strips_leading_space
        self._utf8 = _Utf8Decoder(errors="replace")

    def feed(self, token_id: int) -> str:
        """The text that this token made certain; empty while a character is incomplete."""
        data = self._bytes(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What remains at the end: U+FFFD for a character that never became complete."""
        return self._utf8.decode(b"", final=True)


def decode(vocabulary: Vocabulary, token_ids: Iterable[int]) -> str:
    """The text of `token_ids`, the same that a stream of them adds up to."""
    detokenizer = Detokenizer(vocabulary)
    return "".join([*map(detokenizer.feed, token_ids), detokenizer.flush()])
