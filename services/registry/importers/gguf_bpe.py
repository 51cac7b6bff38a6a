"""Byte-level BPE from GGUF metadata, where the pre-tokenizer is known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_file import GgufFile
    from services.registry.importers.gguf_tokens import Tokens

# Each as its model's authors publish it; they differ in how many digits, and what, keeps together.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Scheme:
    """How text is cut before merging, and whether a piece that is a token is taken as it is."""

    pre_tokenizer: pre_tokenizers.PreTokenizer
    ignore_merges: bool = False
    adds_bos: bool = False
    normalizer: normalizers.Normalizer | None = None


def build(file: GgufFile, tokens: Tokens) -> Tokenizer:
    """A tokenizer with the file's vocabulary and merges."""
    scheme = _scheme(file)
    merges = [_merge(file, line, tokens.vocab) for line in file.metadata("tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(models.BPE(tokens.vocab, merges, ignore_merges=scheme.ignore_merges))
    if scheme.normalizer is not None:
        tokenizer.normalizer = scheme.normalizer
    tokenizer.pre_tokenizer = scheme.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def adds_bos(file: GgufFile) -> bool:
    """Whether BOS is added where the file does not say."""
    return _scheme(file).adds_bos


def _scheme(file: GgufFile) -> Scheme:
    pre = file.metadata("tokenizer.ggml.pre", str, "none")
    if pre not in SCHEMES:
        supported = ", ".join(sorted(SCHEMES))
        raise SourceError(
            file.path, f"metadata tokenizer.ggml.pre: {pre} is unsupported; supported: {supported}"
        )
    return SCHEMES[pre]


def _merge(file: GgufFile, line: object, vocab: dict[str, int]) -> tuple[str, str]:
    left, _, right = str(line).partition(" ")
    if not {left, right, left + right} <= vocab.keys():
        raise SourceError(file.path, f"metadata tokenizer.ggml.merges: {line!r} names no token")
    return left, right


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_DIGITS_APART = Scheme(
    pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
)
_LLAMA3 = Scheme(_split(_LLAMA3_SPLIT), ignore_merges=True, adds_bos=True)
_QWEN2 = Scheme(_split(_QWEN2_SPLIT), normalizer=normalizers.NFC())
SCHEMES = {
    "gpt-2": Scheme(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    **dict.fromkeys(("smollm", "starcoder"), _DIGITS_APART),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": Scheme(_split(_TEKKEN_SPLIT), ignore_merges=True, adds_bos=True),
}
