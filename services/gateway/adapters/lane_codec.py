"""Lane messages to and from plain values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.gateway.core.choice import Alternative, NewToken
from services.gateway.core.outcome import FinishReason
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from services.gateway.app.ports import Submission

_CODES = {
    "INVALID_REQUEST": Code.INVALID_ARGUMENT,
    "CONTEXT_TOO_LONG": Code.INVALID_ARGUMENT,
    "NOT_FOUND": Code.NOT_FOUND,
    "TENANT_RATE_LIMIT": Code.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": Code.RESOURCE_EXHAUSTED,
    "KV_EXHAUSTED": Code.RESOURCE_EXHAUSTED,
    "DEADLINE_INFEASIBLE": Code.RESOURCE_EXHAUSTED,
    "DEADLINE_EXCEEDED": Code.DEADLINE_EXCEEDED,
    "NO_CAPACITY": Code.UNAVAILABLE,
    "DRAINING": Code.UNAVAILABLE,
}
PROTO_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.DEADLINE: inference_pb2.FINISH_REASON_DEADLINE,
    FinishReason.CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
    FinishReason.INCOMPLETE: inference_pb2.FINISH_REASON_INCOMPLETE,
    FinishReason.ERROR: inference_pb2.FINISH_REASON_ERROR,
}


def encode_submission(submission: Submission) -> scheduler_pb2.Submit:
    """The request as the scheduler reads it."""
    order, left = submission.order, submission.deadline_s
    spec, prepared = order.spec, order.prepared
    return scheduler_pb2.Submit(
        request_id=order.request_id,
        tenant_id=order.tenant.tenant_id,
        model_version=order.tokenizer.model_version,
        tokenizer_version=order.tokenizer.tokenizer_version,
        prompt_token_ids=prepared.prompt_token_ids,
        max_output_tokens=prepared.max_output_tokens,
        deadline_us=None if left is None else int(left * 1e6),
        n=spec.n,
        sampling=worker_pb2.Sampling(
            temperature=spec.temperature,
            top_k=spec.top_k,
            top_p=spec.top_p,
            min_p=spec.min_p,
            seed=order.seed,
            top_logprobs=spec.logprobs,
        ),
        stop_token_ids=prepared.stop_token_ids,
        priority=inference_pb2.Priority.Name(order.priority),
        text_spec=encode_text_spec(spec.stop),
    )


def encode_text_spec(stop: tuple[str, ...]) -> bytes:
    """What turns a request's tokens into its caller's text again."""
    return json.dumps({"stop": stop}).encode()


def decode_text_spec(data: bytes) -> tuple[str, ...]:
    """The stop strings of a kept record."""
    return tuple(json.loads(data)["stop"])


def decode_refusal(refused: scheduler_pb2.Refused) -> ServiceError:
    """The scheduler's refusal as the error a caller sees."""
    retry_ms = -(-refused.retry_after_us // 1000) if refused.retry_after_us else None
    code = _CODES.get(refused.reason, Code.INVALID_ARGUMENT if refused.field else Code.UNAVAILABLE)
    return ServiceError(code, refused.reason, refused.message, refused.field, retry_ms)


def decode_reason(reason: int) -> FinishReason:
    """A finish reason; one this build does not know is a failure."""
    try:
        return FinishReason(reason)
    except ValueError:
        return FinishReason.ERROR


def decode_tokens(token_ids: list[int], columns: worker_pb2.LogprobColumns) -> list[NewToken]:
    """Tokens with the log-probabilities of those rows that have them."""
    tokens = [NewToken(token_id) for token_id in token_ids]
    ids, values = columns.top_token_id, columns.top_logprob
    at = 0
    for row, logprob, count in zip(columns.row, columns.logprob, columns.top_count, strict=True):
        end = at + count
        top = tuple(map(Alternative, ids[at:end], values[at:end]))
        tokens[row] = NewToken(token_ids[row], logprob, top)
        at = end
    return tokens
