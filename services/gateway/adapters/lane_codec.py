"""Lane messages to and from plain values."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from kit.errors import Code, ServiceError
from services.gateway.adapters.verdict_codec import (
    PROTO_REASONS,
    decode_kept,
    decode_reason,
    decode_settle,
    encode_settle,
)
from services.gateway.core import lane_messages as lane
from services.gateway.core.choice import Alternative, NewToken
from services.gateway.core.ids import generation_not_found
from services.gateway.core.limits import Priority
from services.gateway.core.order import Order, Sampling
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CODES = {
    "INVALID_REQUEST": Code.INVALID_ARGUMENT,
    "CONTEXT_TOO_LONG": Code.INVALID_ARGUMENT,
    "RESULT_EXPIRED": Code.FAILED_PRECONDITION,
    "TENANT_RATE_LIMIT": Code.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": Code.RESOURCE_EXHAUSTED,
    "KV_EXHAUSTED": Code.RESOURCE_EXHAUSTED,
    "DEADLINE_INFEASIBLE": Code.RESOURCE_EXHAUSTED,
    "DEADLINE_EXCEEDED": Code.DEADLINE_EXCEEDED,
    "NO_CAPACITY": Code.UNAVAILABLE,
    "DRAINING": Code.UNAVAILABLE,
}


def encode(message: lane.Up) -> scheduler_pb2.LaneRequest:
    """A message to the scheduler."""
    request = scheduler_pb2.LaneRequest()
    match message:
        case lane.Hello(gateway_id):
            hello = scheduler_pb2.Hello(gateway_id=gateway_id, says_open=True, says_synced=True)
            request.hello.CopyFrom(hello)
        case lane.Submit():
            request.submit.CopyFrom(encode_submit(message))
        case lane.Open(request_id, epoch):
            request.open.CopyFrom(scheduler_pb2.Open(request_id=request_id, owner_epoch=epoch))
        case lane.Attach(request_id, tenant_id, epoch):
            attach = scheduler_pb2.Attach(request_id=request_id, tenant_id=tenant_id, owner_epoch=epoch)
            request.attach.CopyFrom(attach)
        case lane.Detach(request_id):
            request.detach.request_id = request_id
        case lane.Cancel():
            request.cancel.CopyFrom(_cancel(message))
        case lane.Settle():
            request.settle.CopyFrom(encode_settle(message))
        case lane.Heartbeat(sequence):
            request.heartbeat.sequence = sequence
        case lane.Synced(number):
            request.synced.number = number
    return request


def decode(response: scheduler_pb2.LaneResponse) -> lane.Down | None:
    """A message from the scheduler; None for one that this build does not know."""
    kind = response.WhichOneof("message")
    translate = _FROM_SCHEDULER.get(kind or "")
    return None if translate is None else translate(getattr(response, kind or ""))


def encode_submit(submit: lane.Submit) -> scheduler_pb2.Submit:
    """A request as the scheduler reads it."""
    order, left = submit.order, submit.deadline_s
    return scheduler_pb2.Submit(
        request_id=order.request_id,
        tenant_id=order.tenant_id,
        model_version=order.model_version,
        tokenizer_version=order.tokenizer_version,
        prompt_token_ids=order.prompt_token_ids,
        max_output_tokens=order.max_output_tokens,
        deadline_us=None if left is None else int(left * 1e6),
        n=order.n,
        sampling=worker_pb2.Sampling(
            temperature=order.sampling.temperature,
            top_k=order.sampling.top_k,
            top_p=order.sampling.top_p,
            min_p=order.sampling.min_p,
            seed=order.sampling.seed,
            top_logprobs=order.sampling.top_logprobs,
        ),
        stop_token_ids=order.stop_token_ids,
        priority=inference_pb2.Priority.Name(order.priority),
        text_spec=encode_text_spec(order.stop),
        owner_epoch=submit.owner_epoch,
        resume_lease_us=int(order.resume_lease_s * 1e6),
        resume=order.resume,
        output=[_encode_record(record) for record in submit.output],
        opened=submit.opened,
    )


def decode_submit(submit: scheduler_pb2.Submit) -> lane.Submit:
    """A request as it was accepted; without its times, which are other clocks'."""
    sampling = submit.sampling
    order = Order(
        request_id=submit.request_id,
        tenant_id=submit.tenant_id,
        model_version=submit.model_version,
        tokenizer_version=submit.tokenizer_version,
        prompt_token_ids=list(submit.prompt_token_ids),
        max_output_tokens=submit.max_output_tokens,
        sampling=Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            top_logprobs=sampling.top_logprobs if sampling.HasField("top_logprobs") else None,
        ),
        n=submit.n,
        stop_token_ids=tuple(submit.stop_token_ids),
        stop=decode_text_spec(submit.text_spec),
        priority=Priority(submit.priority or Priority.STANDARD),
        resume=submit.resume,
        resume_lease_s=submit.resume_lease_us / 1e6,
    )
    deadline_s = submit.deadline_us / 1e6 if submit.HasField("deadline_us") else None
    return lane.Submit(order, deadline_s, submit.owner_epoch)


def encode_text_spec(stop: Sequence[str]) -> bytes:
    """What turns a request's tokens into its caller's text again."""
    return json.dumps({"stop": stop}).encode()


def decode_text_spec(data: bytes) -> tuple[str, ...]:
    """The stop strings of a kept record."""
    return tuple(json.loads(data)["stop"])


def decode_record(record: scheduler_pb2.ChoiceRecord) -> lane.ChoiceRecord:
    """One choice as the scheduler keeps it."""
    tokens = decode_tokens(list(record.token_id), record.logprobs)
    return lane.ChoiceRecord(tokens, decode_reason(record.finish_reason) if record.finish_reason else None)


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


def _encode_record(record: lane.ChoiceRecord) -> scheduler_pb2.ChoiceRecord:
    columns = worker_pb2.LogprobColumns()
    for row, token in enumerate(record.tokens):
        if token.logprob is not None:
            columns.row.append(row)
            columns.logprob.append(token.logprob)
            columns.top_count.append(len(token.top))
            columns.top_token_id.extend([one.token_id for one in token.top])
            columns.top_logprob.extend([one.logprob for one in token.top])
    return scheduler_pb2.ChoiceRecord(
        token_id=[token.token_id for token in record.tokens],
        logprobs=columns,
        finish_reason=PROTO_REASONS[record.reason] if record.reason else None,
    )


def _cancel(cancel: lane.Cancel) -> scheduler_pb2.Cancel:
    return scheduler_pb2.Cancel(
        request_id=cancel.request_id,
        choice=cancel.choice,
        kept_tokens=cancel.kept_tokens,
        reason=PROTO_REASONS[cancel.reason],
    )


def _accepted(accepted: scheduler_pb2.Accepted) -> lane.Accepted:
    return lane.Accepted(accepted.request_id, accepted.owner_epoch, accepted.runtime_revision, time.time())


def _step(step: scheduler_pb2.LaneStep) -> lane.Step:
    if not len(step.request_id) == len(step.choice) == len(step.index) == len(step.token_id):
        raise ValueError("the columns of a step disagree")
    return lane.Step(
        step.request_id,
        step.choice,
        step.index,
        decode_tokens(list(step.token_id), step.logprobs),
        [_choice_end(end) for end in step.choice_end],
        [_request_end(end) for end in step.request_end],
    )


def _choice_end(end: scheduler_pb2.ChoiceEnd) -> lane.ChoiceEnd:
    reason = decode_reason(end.finish_reason)
    return lane.ChoiceEnd(end.request_id, end.choice, reason, end.output_tokens, end.error_reason)


def _request_end(end: scheduler_pb2.RequestEnd) -> lane.RequestEnd:
    return lane.RequestEnd(end.request_id, end.input_tokens, end.cached_tokens, end.queue_us / 1e6)


def _attached(attached: scheduler_pb2.Attached) -> lane.Attached:
    record = attached.record
    first = attached.first_token_us / 1e6 if attached.HasField("first_token_us") else None
    return lane.Attached(
        request_id=attached.request_id,
        owner_epoch=attached.owner_epoch,
        submit=decode_submit(attached.submit),
        choices=[decode_record(choice) for choice in record.choice],
        end=_request_end(record.end) if record.HasField("end") else None,
        verdict=decode_kept(record),
        runtime_revision=attached.runtime_revision,
        opened_at=attached.opened_time_us / 1e6,
        age_s=attached.age_us / 1e6,
        first_token_s=first,
    )


def decode_refusal(refused: scheduler_pb2.Refused) -> ServiceError:
    """The scheduler's refusal as the error a caller sees."""
    if refused.reason == "NOT_FOUND":
        return generation_not_found()
    retry_ms = -(-refused.retry_after_us // 1000) if refused.retry_after_us else None
    code = _CODES.get(refused.reason, Code.INVALID_ARGUMENT if refused.field else Code.UNAVAILABLE)
    return ServiceError(code, refused.reason, refused.message, refused.field, retry_ms)


_FROM_SCHEDULER: dict[str, Callable[[Any], lane.Down]] = {
    "step": _step,
    "accepted": _accepted,
    "refused": lambda refused: lane.Refused(refused.request_id, decode_refusal(refused)),
    "attached": _attached,
    "granted": lambda granted: lane.Granted(granted.request_id, granted.owner_epoch),
    "settled": decode_settle,
    "heartbeat_ack": lambda ack: lane.HeartbeatAck(ack.sequence),
    "sync": lambda sync: lane.Sync(sync.number),
}
