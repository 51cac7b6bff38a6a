"""A model version's tokenizer and chat template: prompts to token ids, and ids to text.

Special tokens: in a raw prompt their text counts as the token, since its caller owns the whole prompt and
could send the ids as well. Within a message it stays ordinary text, so that no message can forge a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from kit.artifacts import CHAT_TEMPLATE, TOKENIZER, ArtifactError, verify
from kit.errors import invalid
from services.gateway.core import detokenize
from services.gateway.core.chat_template import ChatTemplate
from services.gateway.core.forgery import Disguise
from services.gateway.core.spec import GenerationSpec
from services.gateway.core.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kit.artifacts import Manifest
    from services.gateway.core.spec import ChatMessage, PromptSpec

# A prompt beyond this many bytes per token of context is refused before any work is spent on it.
_MIN_BYTES_PER_TOKEN = 128


class ModelTokenizer:
    """Encodes and decodes for one model version. Thread-safe; calls take CPU time, so use the pool."""

    def __init__(self, manifest: Manifest, tokenizer_json: str, chat_template: str | None) -> None:
        """Raises ValueError when tokenizer or template cannot be used."""
        self.model_version = manifest.model_version
        self.tokenizer_version = manifest.tokenizer_version
        self.context_length = manifest.context_length
        self.eos_token_ids = manifest.eos_token_ids
        self._tokenizer = _tokenizer(tokenizer_json)
        self._ordinary = _tokenizer(tokenizer_json)
        self._ordinary.encode_special_tokens = True
        self.vocabulary = Vocabulary(self._tokenizer, silent=self.eos_token_ids)
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._special_tokens = [token.content for token in added if token.special]
        self._template = None if chat_template is None else self._compile(chat_template, manifest)
        longest = max(_MIN_BYTES_PER_TOKEN, self.vocabulary.longest_token_bytes)
        self._max_prompt_bytes = self.context_length * longest

    @classmethod
    def load(cls, artifact_dir: Path) -> ModelTokenizer:
        """Load from an artifact directory; raises `ArtifactError` for a damaged or unusable file."""
        manifest = verify(artifact_dir, [TOKENIZER])
        template = None
        if CHAT_TEMPLATE in manifest.files:
            verify(artifact_dir, [CHAT_TEMPLATE])
            template = (artifact_dir / CHAT_TEMPLATE).read_text("utf-8")
        try:
            return cls(manifest, (artifact_dir / TOKENIZER).read_text("utf-8"), template)
        except ValueError as error:
            raise ArtifactError(artifact_dir, f"tokenizer or chat template: {error}") from error

    def encode(self, spec: PromptSpec) -> list[int]:
        """The prompt's ids, whichever form it came in."""
        if spec.messages is not None:
            return self.encode_chat(spec.messages)
        if spec.prompt is not None:
            return self.encode_prompt(spec.prompt)
        ids = spec.prompt_token_ids if isinstance(spec, GenerationSpec) else None
        return list(ids or ())

    def encode_prompt(self, prompt: str) -> list[int]:
        """Ids of a raw prompt, with what the tokenizer itself adds (BOS where the model wants one)."""
        self._check_size("prompt", len(prompt.encode()))
        return self._tokenizer.encode(prompt).ids

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of a conversation, up to where the assistant's turn begins."""
        if self._template is None:
            raise invalid("messages", f"{self.model_version} has no chat template; send a prompt")
        self._check_size("messages", sum(len(message.content.encode()) for message in messages))
        disguise = Disguise(self._special_tokens, messages)
        ids: list[int] = []
        for part in disguise.parts(self._template.render(disguise.messages)):
            tokenizer = self._ordinary if part.ordinary else self._tokenizer
            ids += tokenizer.encode(part.text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of `token_ids`, without special tokens."""
        return detokenize.decode(self.vocabulary, token_ids)

    def _check_size(self, field: str, size: int) -> None:
        if size > self._max_prompt_bytes:
            allowed = self.context_length - 1
            raise invalid(
                field,
                f"{field} has {size} bytes; the model takes at most {allowed} tokens",
                "CONTEXT_TOO_LONG",
            )

    def _compile(self, source: str, manifest: Manifest) -> ChatTemplate:
        eos = manifest.eos_token_ids[0] if manifest.eos_token_ids else None
        return ChatTemplate(source, bos_token=self._name(manifest.bos_token_id), eos_token=self._name(eos))

    def _name(self, token_id: int | None) -> str:
        return "" if token_id is None else self.vocabulary.token_text(token_id)


def _tokenizer(tokenizer_json: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(tokenizer_json)
    except Exception as error:
        # The library raises bare Exception for whatever it cannot read.
        raise ValueError(str(error)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
