"""What each token id is in bytes: a table made once per tokenizer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tokenizers import Tokenizer

_WORD_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PLAIN_STEPS = {"Fuse", "ByteFallback"}


class UnsupportedTokenizerError(ValueError):
    """The tokenizer decodes in a way that has no table of bytes."""


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How a decoder turns token strings into bytes."""

    to_bytes: Callable[[str], bytes]
    strips_leading_space: bool = False


class Vocabulary:
    """Bytes of every token. Special tokens have a name but add nothing to text."""

    def __init__(self, tokenizer: Tokenizer, silent: Collection[int] = ()) -> None:
        """`silent` ids add no text, besides the special ones: EOS tokens that are not marked special."""
        decoder = tokenizer.decoder
        scheme = _scheme(None if decoder is None else json.loads(decoder.__getstate__()))
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
        self.strips_leading_space = scheme.strips_leading_space
        self._own = [b""] * (max(vocab.values(), default=-1) + 1)
        for token, token_id in vocab.items():
            self._own[token_id] = token.encode() if token_id in added else scheme.to_bytes(token)
        self._text = self._own.copy()
        for token_id in {i for i, token in added.items() if token.special} | set(silent):
            if token_id < len(self._text):
                self._text[token_id] = b""

    @property
    def longest_token_bytes(self) -> int:
        """Most bytes that one token stands for."""
        return max(map(len, self._own), default=0)

    def __len__(self) -> int:
        """One more than the highest id."""
        return len(self._own)

    def text_bytes(self, token_id: int) -> bytes:
        """What the token adds to text; nothing for special and unknown ids."""
        return self._text[token_id] if 0 <= token_id < len(self._text) else b""

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, special ones included: for log-probabilities."""
        return self._own[token_id] if 0 <= token_id < len(self._own) else b""

    def token_text(self, token_id: int) -> str:
        """The token on its own; U+FFFD marks bytes that are no character alone."""
        return self.token_bytes(token_id).decode(errors="replace")


def byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes: printable ones as they are, others moved."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(moved)}


def _scheme(decoder: dict[str, Any] | None) -> _Scheme:
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if not kinds:
        return _Scheme(lambda token: f" {token}".encode(), strips_leading_space=True)
    if kinds == ["ByteLevel"]:
        return _byte_level()
    strips = False
    for step in steps:
        if step["type"] == "Metaspace":
            strips = step.get("prepend_scheme", "always") != "never"
        elif step["type"] == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0):
            strips = True
        elif step["type"] not in _PLAIN_STEPS and not _replaces_word_mark(step):
            raise UnsupportedTokenizerError(f"decoder step {step['type']} is not supported")
    return _Scheme(_word_marked, strips)


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _byte_level() -> _Scheme:
    alphabet = byte_alphabet()

    def to_bytes(token: str) -> bytes:
        try:
            return bytes([alphabet[character] for character in token])
        except KeyError:
            return token.encode()

    return _Scheme(to_bytes)


def _replaces_word_mark(step: dict[str, Any]) -> bool:
    return step["type"] == "Replace" and (step["pattern"], step["content"]) == ({"String": _WORD_MARK}, " ")


def _word_marked(token: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(_WORD_MARK, " ").encode()
