"""Sentencepiece BPE from GGUF metadata: pieces with scores become a BPE whose merges are in order of score.

Sentencepiece joins the neighbours whose joint piece scores best, leftmost first. A BPE does the same when
its merges are every way to cut a piece into two pieces, ranked by the piece's score. Characters without a
piece fall back to their bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, normalizers

from services.registry.importers.gguf_tokens import BYTE, NORMAL, SPACE_MARK, UNKNOWN
from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_file import GgufFile
    from services.registry.importers.gguf_tokens import Tokens

_BYTE_VALUES = 256


def build(file: GgufFile, tokens: Tokens) -> Tokenizer:
    """A tokenizer with the file's pieces."""
    prefixed = file.metadata("tokenizer.ggml.add_space_prefix", bool, True)
    unknown = next(iter(tokens.of_kind(UNKNOWN)), _unknown_token(file, tokens))
    model = models.BPE(
        tokens.vocab,
        _merges(tokens, _scores(file, tokens)),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=_has_bytes(file, tokens),
    )
    tokenizer = Tokenizer(model)
    marked: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    # Also after a special token, as llama.cpp does.
    if prefixed:
        marked.insert(0, normalizers.Prepend(SPACE_MARK))
    tokenizer.normalizer = normalizers.Sequence(marked)
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if prefixed else []))
    return tokenizer


def adds_bos(file: GgufFile) -> bool:
    """Whether BOS is added where the file does not say."""
    return True


def _scores(file: GgufFile, tokens: Tokens) -> list[float]:
    scores = file.metadata("tokenizer.ggml.scores", list)
    fit = len(scores) == len(tokens.texts) and all(isinstance(score, float) for score in scores)
    if not fit or not all(map(math.isfinite, scores)):
        raise SourceError(file.path, "metadata tokenizer.ggml.scores does not fit the tokens")
    return scores


def _unknown_token(file: GgufFile, tokens: Tokens) -> str | None:
    index = file.metadata("tokenizer.ggml.unknown_token_id", int, -1)
    return tokens.texts[index] if 0 <= index < len(tokens.texts) else None


def _has_bytes(file: GgufFile, tokens: Tokens) -> bool:
    found = tokens.of_kind(BYTE)
    if found and set(found) != {f"<0x{value:02X}>" for value in range(_BYTE_VALUES)}:
        raise SourceError(file.path, f"metadata tokenizer.ggml.tokens has {len(found)} of 256 byte tokens")
    return bool(found)


def _merges(tokens: Tokens, scores: list[float]) -> list[tuple[str, str]]:
    pieces = {text: scores[index] for index, text in enumerate(tokens.texts) if tokens.kinds[index] == NORMAL}
    cuts = [
        (text[:cut], text[cut:])
        for text in pieces
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    return sorted(cuts, key=lambda cut: (-pieces[cut[0] + cut[1]], -len(cut[0])))
