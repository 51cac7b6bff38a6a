"""A model version's tokenizer and chat template: prompts to token ids, and ids to text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from services.gateway.core.spec import ChatMessage, GenerationSpec, PromptSpec
    from services.gateway.core.vocabulary import Vocabulary


class ModelTokenizer:
    """Encodes and decodes for one model version. Thread-safe; calls take CPU time, so use the pool."""

    model_version: str
    tokenizer_version: str
    context_length: int
    eos_token_ids: tuple[int, ...]
    vocabulary: Vocabulary

    @classmethod
    def load(cls, artifact_dir: Path) -> ModelTokenizer:
        """Load from a verified artifact directory; raises `ArtifactError` for a damaged file."""
        raise NotImplementedError

    def encode(self, spec: PromptSpec | GenerationSpec) -> list[int]:
        """The prompt's ids, whichever form it came in; refuses one that cannot fit the context."""
        raise NotImplementedError

    def encode_prompt(self, prompt: str) -> list[int]:
        """Ids of a raw prompt; the text of special tokens is recognised, as the caller owns it all."""
        raise NotImplementedError

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of a conversation; text of special tokens within a message stays ordinary text."""
        raise NotImplementedError

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of `token_ids`."""
        raise NotImplementedError
