"""The token list of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_file import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE_MARK = "\u2581"


@dataclass(frozen=True)
class Tokens:
    """Texts and kinds by id. A user-defined token's text has real spaces: it matches the raw prompt."""

    texts: list[str]
    kinds: list[int]
    vocab: dict[str, int]

    def of_kind(self, kind: int) -> list[str]:
        """The texts of one kind, in the order of their ids."""
        return [text for text, own in zip(self.texts, self.kinds, strict=True) if own == kind]


def read_tokens(file: GgufFile) -> Tokens:
    """Check the list; tokens marked unused are no part of the vocabulary."""
    texts = file.metadata("tokenizer.ggml.tokens", list)
    kinds = file.metadata("tokenizer.ggml.token_type", list, [NORMAL] * len(texts))
    if not texts or not all(isinstance(text, str) for text in texts):
        raise SourceError(file.path, "metadata tokenizer.ggml.tokens is no list of tokens")
    if len(kinds) != len(texts) or set(kinds) - set(range(NORMAL, BYTE + 1)):
        raise SourceError(file.path, "metadata tokenizer.ggml.token_type does not fit the tokens")
    texts = [
        text.replace(SPACE_MARK, " ") if kind == USER_DEFINED else text
        for text, kind in zip(texts, kinds, strict=True)
    ]
    vocab = {text: index for index, text in enumerate(texts) if kinds[index] != UNUSED}
    if len(vocab) != len(texts) - kinds.count(UNUSED):
        raise SourceError(file.path, "metadata tokenizer.ggml.tokens holds a token twice")
    return Tokens(texts, kinds, vocab)
