"""The native face's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.gateway.core.ids import format_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.app.reading import Acceptance, Reading
    from services.gateway.app.snapshot import Snapshot
    from services.gateway.core.choice import ChoiceAssembler, Piece, TokenRecord
    from services.gateway.core.outcome import Closed
    from services.gateway.core.vocabulary import Vocabulary

Json = dict[str, Any]


def accepted(facts: Acceptance) -> Json:
    """What is fixed once the request is queued."""
    sampling = facts.sampling
    return {
        "requestId": format_id(facts.request_id),
        "modelVersion": facts.model_version,
        "tokenizerVersion": facts.tokenizer_version,
        "runtimeRevision": facts.runtime_revision,
        "sampling": {
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "topK": sampling.top_k,
            "minP": sampling.min_p,
            "seed": sampling.seed,
        },
    }


def token(piece: Piece, facts: Acceptance) -> Json:
    """New tokens of one choice."""
    body: Json = {
        "choice": piece.choice,
        "index": piece.index,
        "count": piece.count,
        "text": piece.text,
        "tokenIds": [record.token_id for record in piece.tokens],
    }
    if facts.sampling.top_logprobs is not None:
        body["logprobs"] = [_logprob(record, facts.vocabulary) for record in piece.tokens]
    if piece.finish_reason is not None:
        body["finishReason"] = piece.finish_reason.label
    return body


def done(closed: Closed) -> Json:
    """The terminal record."""
    return {
        "finishReason": closed.finish_reason.label,
        "inputTokens": closed.input_tokens,
        "outputTokens": closed.output_tokens,
        "cachedTokens": closed.cached_tokens,
        "queueMs": closed.queue_ms,
        "ttftMs": closed.ttft_ms,
        "totalMs": closed.total_ms,
    }


def whole(reading: Reading, closed: Closed) -> Json:
    """Everything of a request that did not stream."""
    facts = reading.accepted
    logprobs = facts.sampling.top_logprobs is not None
    return accepted(facts) | output(reading.choices, facts.vocabulary, logprobs=logprobs) | done(closed)


def snapshot(request_id: int, found: Snapshot) -> Json:
    """State, output so far and, once finished, the terminal record."""
    head = {
        "requestId": format_id(request_id),
        "state": found.state.label,
        "modelVersion": found.model_version,
    }
    logprobs = any(record.logprob is not None for choice in found.choices for record in choice.records)
    body = head | output(found.choices, found.vocabulary, logprobs=logprobs)
    return body if found.closed is None else body | done(found.closed)


def output(choices: Sequence[ChoiceAssembler], vocabulary: Vocabulary, *, logprobs: bool) -> Json:
    """Every choice; the first one's members also at the top."""
    all_choices = [_choice(choice, vocabulary, logprobs=logprobs) for choice in choices]
    first = all_choices[0] if all_choices else {"text": "", "tokenIds": []}
    top = {name: value for name, value in first.items() if name in {"text", "tokenIds", "logprobs"}}
    return top | ({"choices": all_choices} if len(all_choices) > 1 else {})


def _choice(choice: ChoiceAssembler, vocabulary: Vocabulary, *, logprobs: bool) -> Json:
    body: Json = {"choice": choice.choice, "text": choice.text, "tokenIds": choice.token_ids}
    if logprobs:
        body["logprobs"] = [_logprob(record, vocabulary) for record in choice.records]
    if choice.finish_reason is not None:
        body["finishReason"] = choice.finish_reason.label
    return body


def _logprob(record: TokenRecord, vocabulary: Vocabulary) -> Json:
    return _entry(record.token_id, record.logprob, vocabulary) | {
        "top": [_entry(token_id, logprob, vocabulary) for token_id, logprob in record.top]
    }


def _entry(token_id: int, logprob: float | None, vocabulary: Vocabulary) -> Json:
    return {"tokenId": token_id, "token": vocabulary.token_text(token_id), "logprob": logprob}
