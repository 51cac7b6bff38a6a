"""A toy model: its vocabulary, and what a request must produce whatever happens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.unit.scheduler_core.model_worker import ROOT, extend, next_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.core.spec import GenerationSpec

NAME, MODEL_VERSION, TOKENIZER_VERSION = "toy", "toy@1", "toy-tokenizer"
VOCAB, CONTEXT, EOS = 64, 48, 1
LETTERS = "abcdefgh"


class Vocabulary:
    """Every token is one letter; several tokens share each."""

    strips_leading_space = False
    longest_token_bytes = 1

    def __len__(self) -> int:
        return VOCAB

    def text_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else LETTERS[token_id % len(LETTERS)].encode()

    token_bytes = text_bytes

    def token_text(self, token_id: int) -> str:
        return self.text_bytes(token_id).decode()


def tokenizer() -> Any:
    """What the gateway knows of the model."""
    return SimpleNamespace(
        model_version=MODEL_VERSION,
        tokenizer_version=TOKENIZER_VERSION,
        context_length=CONTEXT,
        eos_token_ids=(EOS,),
        vocabulary=Vocabulary(),
        encode=lambda spec: list(spec.prompt_token_ids),
    )


@dataclass(frozen=True)
class Truth:
    """What a request must produce: of every choice the tokens, and their text.

    `whole` are the tokens when nobody looks for stop strings: a scheduler that closes in a gateway's place
    knows of none.
    """

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    whole: tuple[tuple[int, ...], ...]


def text_of(ids: Sequence[int]) -> str:
    """All that tokens write."""
    return "".join(map(Vocabulary().token_text, ids))


def truth(spec: GenerationSpec, seed: int) -> Truth:
    """The undisturbed output, which any disturbed one must be a beginning of."""
    assert spec.prompt_token_ids is not None
    return _truth(
        tuple(spec.prompt_token_ids), spec.max_output_tokens or 1, spec.n, seed, spec.stop, spec.ignore_eos
    )


@cache
def _truth(
    prompt: tuple[int, ...], most: int, n: int, seed: int, stop: Sequence[str], ignore_eos: bool
) -> Truth:
    tokens, texts = zip(
        *(_choice(prompt, most, seed, choice, stop, ignore_eos) for choice in range(n)), strict=True
    )
    whole = tuple(_choice(prompt, most, seed, choice, (), ignore_eos)[0] for choice in range(n))
    return Truth(tokens, texts, whole)


def _choice(
    prompt: tuple[int, ...], most: int, seed: int, choice: int, stop: Sequence[str], ignore_eos: bool
) -> tuple[tuple[int, ...], str]:
    prefix = ROOT
    for token in prompt:
        prefix = extend(prefix, token)
    tokens: list[int] = []
    text = ""
    while len(tokens) < min(most, CONTEXT - len(prompt)):
        token = next_token(prefix, seed, choice, VOCAB)
        tokens.append(token)
        if token == EOS and not ignore_eos:
            break
        text += Vocabulary().token_text(token)
        if ends := [one for one in stop if text.endswith(one)]:
            text = text[: -max(map(len, ends))]
            break
        prefix = extend(prefix, token)
    return tuple(tokens), text
