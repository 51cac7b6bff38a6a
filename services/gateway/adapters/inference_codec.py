"""InferenceService messages to and from plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.errors import invalid
from services.gateway.adapters.verdict_codec import PROTO_REASONS
from services.gateway.app.ports import State
from services.gateway.core.ids import format_id
from tokenloom.api.inference.v1 import inference_pb2

if TYPE_CHECKING:
    from services.gateway.app.ports import Route
    from services.gateway.app.reading import Acceptance
    from services.gateway.app.snapshot import Snapshot
    from services.gateway.core.choice import ChoiceAssembler, Piece, TokenRecord
    from services.gateway.core.outcome import Closed
    from services.gateway.core.vocabulary import Vocabulary

_STATES = {
    State.QUEUED: inference_pb2.GENERATION_STATE_QUEUED,
    State.RUNNING: inference_pb2.GENERATION_STATE_RUNNING,
    State.FINISHED: inference_pb2.GENERATION_STATE_FINISHED,
}


def plain(request: inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest) -> dict[str, Any]:
    """The fields that were set, as the validator takes them."""
    fields: dict[str, Any] = {}
    for descriptor, value in request.ListFields():
        match descriptor.name:
            case "prompt_token_ids":
                fields["prompt_token_ids"] = list(value.ids)
            case "messages":
                fields["messages"] = [{"role": turn.role, "content": turn.content} for turn in value.messages]
            case "stop":
                fields["stop"] = list(value)
            case "priority":
                fields["priority"] = _priority(value)
            case "idempotency_key":
                pass  # it names the request and says nothing of its content
            case name:
                fields[name] = value
    return fields


def accepted(facts: Acceptance) -> inference_pb2.Accepted:
    """What is fixed once the request is queued."""
    sampling = facts.sampling
    return inference_pb2.Accepted(
        request_id=format_id(facts.request_id),
        model_version=facts.model_version,
        tokenizer_version=facts.tokenizer_version,
        runtime_revision=facts.runtime_revision,
        sampling=inference_pb2.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
        ),
    )


def fill_tokens(message: inference_pb2.Tokens, piece: Piece, facts: Acceptance) -> None:
    """New tokens of one choice."""
    message.choice = piece.choice
    message.index = piece.index
    message.count = piece.count
    message.text = piece.text
    message.token_ids.extend([record.token_id for record in piece.tokens])
    if facts.sampling.top_logprobs is not None:
        message.logprobs.extend([_logprob(record, facts.vocabulary) for record in piece.tokens])
    if piece.finish_reason is not None:
        message.finish_reason = PROTO_REASONS[piece.finish_reason]


def done(closed: Closed) -> inference_pb2.Done:
    """The terminal record."""
    return inference_pb2.Done(
        finish_reason=PROTO_REASONS[closed.finish_reason],
        input_tokens=closed.input_tokens,
        output_tokens=closed.output_tokens,
        cached_tokens=closed.cached_tokens,
        queue_ms=closed.queue_ms,
        ttft_ms=closed.ttft_ms,
        total_ms=closed.total_ms,
    )


def snapshot(request_id: int, found: Snapshot) -> inference_pb2.GetResponse:
    """State, output so far and, once finished, the terminal record."""
    return inference_pb2.GetResponse(
        request_id=format_id(request_id),
        state=state(found.state),
        model_version=found.model_version,
        choices=[_result(choice, found.vocabulary) for choice in found.choices],
        done=None if found.closed is None else done(found.closed),
    )


def model(route: Route) -> inference_pb2.Model:
    """A model that can be called."""
    return inference_pb2.Model(
        name=route.name,
        version=route.model_version,
        context_length=route.context_length,
        family=route.family,
    )


def state(found: State) -> inference_pb2.GenerationState:
    """A state's number."""
    return _STATES[found]


def _result(choice: ChoiceAssembler, vocabulary: Vocabulary) -> inference_pb2.ChoiceResult:
    return inference_pb2.ChoiceResult(
        choice=choice.choice,
        text=choice.text,
        token_ids=choice.token_ids,
        logprobs=[_logprob(r, vocabulary) for r in choice.records if r.logprob is not None],
        finish_reason=PROTO_REASONS[choice.finish_reason] if choice.finish_reason else None,
    )


def _logprob(record: TokenRecord, vocabulary: Vocabulary) -> inference_pb2.TokenLogprob:
    top = [_entry(token_id, logprob, vocabulary) for token_id, logprob in record.top]
    return _entry(record.token_id, record.logprob or 0.0, vocabulary, top)


def _entry(
    token_id: int,
    logprob: float,
    vocabulary: Vocabulary,
    top: list[inference_pb2.TokenLogprob] | None = None,
) -> inference_pb2.TokenLogprob:
    return inference_pb2.TokenLogprob(
        token_id=token_id, token=vocabulary.token_text(token_id), logprob=logprob, top=top
    )


def _priority(value: int) -> str:
    try:
        return inference_pb2.Priority.Name(value).removeprefix("PRIORITY_").lower()
    except ValueError:
        raise invalid("priority", "priority must be INTERACTIVE, STANDARD or BATCH") from None
