"""Finish reasons and verdicts to and from protos; microseconds there, milliseconds with three places here."""

from __future__ import annotations

from services.gateway.core.lane_messages import Settle
from services.gateway.core.outcome import Closed, FinishReason, Verdict
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2

PROTO_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.DEADLINE: inference_pb2.FINISH_REASON_DEADLINE,
    FinishReason.CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
    FinishReason.INCOMPLETE: inference_pb2.FINISH_REASON_INCOMPLETE,
    FinishReason.ERROR: inference_pb2.FINISH_REASON_ERROR,
}


def decode_reason(reason: int) -> FinishReason:
    """A finish reason; one this build does not know is a failure."""
    try:
        return FinishReason(reason)
    except ValueError:
        return FinishReason.ERROR


def encode_settle(settle: Settle) -> scheduler_pb2.Settle:
    """The owner's verdict."""
    verdict = settle.verdict
    closed = verdict.closed
    return scheduler_pb2.Settle(
        request_id=settle.request_id,
        owner_epoch=settle.owner_epoch,
        finish_reason=PROTO_REASONS[closed.finish_reason],
        output_tokens=verdict.output_tokens,
        input_tokens=closed.input_tokens,
        cached_tokens=closed.cached_tokens,
        queue_us=round(closed.queue_ms * 1000),
        ttft_us=round(closed.ttft_ms * 1000),
        total_us=round(closed.total_ms * 1000),
        error_reason=verdict.error_reason,
        choice_finish_reason=[PROTO_REASONS[reason] for reason in verdict.reasons],
    )


def decode_settle(settle: scheduler_pb2.Settle) -> Settle:
    """The verdict as its owner said it."""
    reason = decode_reason(settle.finish_reason)
    output = sum(settle.output_tokens)
    closed = Closed(
        finish_reason=reason,
        input_tokens=settle.input_tokens,
        cached_tokens=settle.cached_tokens,
        output_tokens=output,
        billable_tokens=0 if reason is FinishReason.ERROR else settle.input_tokens + output,
        queue_ms=settle.queue_us / 1000,
        ttft_ms=settle.ttft_us / 1000,
        total_ms=settle.total_us / 1000,
    )
    reasons = tuple(map(decode_reason, settle.choice_finish_reason))
    verdict = Verdict(closed, tuple(settle.output_tokens), reasons, settle.error_reason)
    return Settle(settle.request_id, settle.owner_epoch, verdict)


def decode_kept(record: scheduler_pb2.GetGenerationResponse) -> Verdict | None:
    """The verdict in a kept record; what an owner of an earlier version left out is in its end."""
    if not record.HasField("settled"):
        return None
    settled = scheduler_pb2.Settle()
    settled.CopyFrom(record.settled)
    if not settled.choice_finish_reason:
        settled.input_tokens, settled.cached_tokens = record.end.input_tokens, record.end.cached_tokens
        settled.queue_us = record.end.queue_us
    return decode_settle(settled).verdict
