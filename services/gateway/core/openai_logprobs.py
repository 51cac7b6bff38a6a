"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.gateway.core.choice import TokenRecord
    from services.gateway.core.vocabulary import Vocabulary

# JSON has no minus infinity; this is what OpenAI sends for a token beyond all likelihood.
_LEAST = -9999.0


def chat(records: Iterable[TokenRecord], vocabulary: Vocabulary) -> dict[str, Any]:
    """`logprobs` of a chat choice: one entry a token, with its alternatives."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": vocabulary.token_text(token_id),
            "logprob": _finite(logprob),
            "bytes": list(vocabulary.token_bytes(token_id)),
        }

    content = [
        entry(record.token_id, record.logprob) | {"top_logprobs": [entry(*top) for top in record.top]}
        for record in records
    ]
    return {"content": content, "refusal": None}


def completions(
    records: Iterable[TokenRecord], vocabulary: Vocabulary, text_offset: int = 0
) -> dict[str, Any]:
    """`logprobs` of a completion choice: parallel arrays; offsets count characters of the choice's text."""
    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float]] = []
    offsets: list[int] = []
    for record in records:
        name = vocabulary.token_text(record.token_id)
        tokens.append(name)
        token_logprobs.append(_finite(record.logprob))
        top_logprobs.append(_by_name(record, name, vocabulary))
        offsets.append(text_offset)
        text_offset += len(record.text)
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": offsets,
    }


def _by_name(record: TokenRecord, name: str, vocabulary: Vocabulary) -> dict[str, float]:
    """Alternatives by their text, the drawn token among them; of equal names the likeliest counts."""
    named: dict[str, float] = {}
    for alternative in record.top:
        named.setdefault(vocabulary.token_text(alternative.token_id), _finite(alternative.logprob))
    named.setdefault(name, _finite(record.logprob))
    return named


def _finite(logprob: float | None) -> float:
    return _LEAST if logprob is None else max(logprob, _LEAST)
