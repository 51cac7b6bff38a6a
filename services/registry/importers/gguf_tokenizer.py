"""tokenizer.json from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import AddedToken, processors

from services.registry.importers import gguf_bpe, gguf_sentencepiece
from services.registry.importers.gguf_tokens import CONTROL, USER_DEFINED, read_tokens
from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from services.registry.importers.gguf_file import GgufFile
    from services.registry.importers.gguf_tokens import Tokens

_MODELS = {"gpt2": gguf_bpe, "llama": gguf_sentencepiece}
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Ends of a turn that converters do not always name by a key.
_TURN_ENDS = frozenset({"<end_of_turn>", "<|im_end|>", "<|eot_id|>"})


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and the ids that matter to generation."""

    tokenizer_json: str
    size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


def vocabulary_of(file: GgufFile) -> Vocabulary:
    """Rebuild the tokenizer; BOS, where the model wants it, is added by the post-processor."""
    name = file.metadata("tokenizer.ggml.model", str)
    if name not in _MODELS:
        supported = ", ".join(_MODELS)
        raise SourceError(
            file.path, f"metadata tokenizer.ggml.model: {name} is unsupported; supported: {supported}"
        )
    model = _MODELS[name]
    tokens = read_tokens(file)
    tokenizer = model.build(file, tokens)
    _add_tokens(tokenizer, tokens)
    bos = _token_id(file, "bos_token_id", tokens)
    if file.metadata("tokenizer.ggml.add_bos_token", bool, model.adds_bos(file)):
        _prepend_bos(file, tokenizer, tokens, bos)
    return Vocabulary(tokenizer.to_str(), len(tokens.texts), _stops(file, tokens), bos)


def _add_tokens(tokenizer: Tokenizer, tokens: Tokens) -> None:
    """Control and user-defined tokens match before anything else does; only control ones are special."""
    added = {
        kind: [AddedToken(text, special=kind == CONTROL, normalized=False) for text in tokens.of_kind(kind)]
        for kind in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens(added[CONTROL])
    tokenizer.add_tokens(added[USER_DEFINED])


def _prepend_bos(file: GgufFile, tokenizer: Tokenizer, tokens: Tokens, bos: int | None) -> None:
    if bos is None:
        raise SourceError(file.path, "metadata tokenizer.ggml.bos_token_id is missing")
    text = tokens.texts[bos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[f"{text}:0", "$A:0"], special_tokens=[(text, bos)]
    )


def _stops(file: GgufFile, tokens: Tokens) -> tuple[int, ...]:
    named = (_token_id(file, key, tokens) for key in _STOP_KEYS)
    ends = (index for index, text in enumerate(tokens.texts) if text in _TURN_ENDS)
    stops = {index for index in named if index is not None}
    return tuple(sorted(stops | {index for index in ends if tokens.kinds[index] == CONTROL}))


def _token_id(file: GgufFile, key: str, tokens: Tokens) -> int | None:
    value = file.find(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(tokens.texts):
        raise SourceError(
            file.path, f"metadata tokenizer.ggml.{key}: {value} is not among {len(tokens.texts)} tokens"
        )
    return value
