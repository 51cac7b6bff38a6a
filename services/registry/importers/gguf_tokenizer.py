"""tokenizer.json from GGUF metadata: byte-level BPE whose pre-tokenizer is known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_file import GgufFile

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_KNOWN_TYPES = {1, 2, _CONTROL, _USER_DEFINED, _UNUSED}
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and the ids that matter to generation."""

    tokenizer_json: str
    size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


def vocabulary_of(file: GgufFile) -> Vocabulary:
    """Rebuild the tokenizer; BOS, where the model wants it, is added by the post-processor."""
    model = file.metadata("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise SourceError(
            file.path, f"metadata tokenizer.ggml.model: {model} is unsupported; supported: gpt2"
        )
    pre = file.metadata("tokenizer.ggml.pre", str, "none")
    if pre not in PRE_TOKENIZERS:
        supported = ", ".join(sorted(PRE_TOKENIZERS))
        raise SourceError(
            file.path, f"metadata tokenizer.ggml.pre: {pre} is unsupported; supported: {supported}"
        )
    tokens = file.metadata("tokenizer.ggml.tokens", list)
    types = file.metadata("tokenizer.ggml.token_type", list, [1] * len(tokens))
    if len(types) != len(tokens) or set(types) - _KNOWN_TYPES:
        raise SourceError(file.path, "metadata tokenizer.ggml.token_type does not fit the tokens")
    tokenizer = _tokenizer(file, pre, tokens, types)
    bos = _token_id(file, "bos_token_id", tokens)
    if file.metadata("tokenizer.ggml.add_bos_token", bool, pre in _LLAMA3_NAMES):
        if bos is None:
            raise SourceError(file.path, "metadata tokenizer.ggml.bos_token_id is missing")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    found = (_token_id(file, key, tokens) for key in _STOP_KEYS)
    stops = tuple(sorted({token_id for token_id in found if token_id is not None}))
    return Vocabulary(tokenizer.to_str(), len(tokens), stops, bos)


def _tokenizer(file: GgufFile, pre: str, tokens: list[str], types: list[int]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens) if types[index] != _UNUSED}
    if len(vocab) != len(tokens) - types.count(_UNUSED):
        raise SourceError(file.path, "metadata tokenizer.ggml.tokens holds a token twice")
    merges = [_merge(file, line, vocab) for line in file.metadata("tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in _LLAMA3_NAMES))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    return tokenizer


def _merge(file: GgufFile, line: str, vocab: dict[str, int]) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not {left, right, left + right} <= vocab.keys():
        raise SourceError(file.path, f"metadata tokenizer.ggml.merges: {line!r} names no token")
    return left, right


def _token_id(file: GgufFile, key: str, tokens: list[str]) -> int | None:
    value = file.find(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(tokens):
        raise SourceError(
            file.path, f"metadata tokenizer.ggml.{key}: {value} is not among {len(tokens)} tokens"
        )
    return value


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _llama3() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_LLAMA3_NAMES = ("llama-bpe", "llama-v3", "llama3")
PRE_TOKENIZERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _digits_apart(),
    "starcoder": _digits_apart(),
    **{name: _llama3() for name in _LLAMA3_NAMES},
}
