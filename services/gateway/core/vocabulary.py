"""What each token id is in bytes: a table made once per tokenizer."""

from __future__ import annotations


class Vocabulary:
    """Bytes of every token. Special tokens have a name but add nothing to text."""

    strips_leading_space: bool

    def __len__(self) -> int:
        """One more than the highest id."""
        raise NotImplementedError

    def text_bytes(self, token_id: int) -> bytes:
        """What the token adds to text; nothing for special and unknown ids."""
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, special ones included: for log-probabilities."""
        raise NotImplementedError

    def token_text(self, token_id: int) -> str:
        """The token on its own; U+FFFD marks bytes that are no character alone."""
        raise NotImplementedError
