"""Lane values <-> the lane protocol."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar, cast

from kit.errors import invalid
from services.scheduler.adapters.protos import agree, read_logprobs, write_logprobs
from services.scheduler.core.messages import (
    ChoiceEnded,
    Effect,
    FinishReason,
    Output,
    Priority,
    Request,
    RequestEnded,
    Sampling,
    State,
    TokenCommitted,
)
from services.scheduler.core.notices import Attached, Granted, Notice, Settled, Sync
from services.scheduler.core.records import Order, Record, Verdict
from tokenloom.api.scheduler.v1 import scheduler_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokenloom.api.inference.v1 import inference_pb2

Member = TypeVar("Member", bound=enum.IntEnum)
_EFFECTS = (TokenCommitted, ChoiceEnded, RequestEnded)
NOT_KEPT = ("output", "deadline_us", "owner_epoch", "opened")  # of a submission: true at one moment only


def request(submit: scheduler_pb2.Submit, now: float) -> Request:
    """Read a submission; a deadline becomes an instant on our clock."""
    sampling = submit.sampling
    return Request(
        request_id=submit.request_id,
        tenant_id=submit.tenant_id,
        prompt=tuple(submit.prompt_token_ids),
        max_output_tokens=submit.max_output_tokens,
        n=submit.n,
        sampling=Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            top_logprobs=sampling.top_logprobs if sampling.HasField("top_logprobs") else None,
        ),
        stop_token_ids=frozenset(submit.stop_token_ids),
        deadline=_deadline(submit, now),
        priority=member(Priority, submit.priority or Priority.STANDARD, "priority"),
        tokenizer_version=submit.tokenizer_version,
        resume=submit.resume,
        output=tuple(map(_output, submit.output)),
    )


def _deadline(submit: scheduler_pb2.Submit, now: float) -> float | None:
    return now + submit.deadline_us / 1e6 if submit.HasField("deadline_us") else None


def _output(record: scheduler_pb2.ChoiceRecord) -> Output:
    tokens, columns = record.token_id, record.logprobs
    if list(columns.row) != list(range(len(tokens))) and columns.row:
        raise invalid("output", "must have log-probabilities of every token or of none")
    if not agree(columns, len(tokens)):
        raise invalid("output", "has log-probabilities whose columns disagree")
    reason = record.finish_reason
    return Output(
        token_ids=tuple(tokens),
        logprobs=tuple(entry for _, entry in read_logprobs(columns)),
        finish_reason=member(FinishReason, reason, "output") if reason else None,
        error_reason=record.error_reason,
    )


def order(
    submit: scheduler_pb2.Submit, runtime_revision: str, now: float, wall: float, *, opened: bool = True
) -> Order:
    """Read what is kept of a submission."""
    spec = scheduler_pb2.Submit()
    spec.CopyFrom(submit)
    for field in NOT_KEPT:
        spec.ClearField(field)
    return Order(
        request_id=submit.request_id,
        tenant_id=submit.tenant_id,
        model_version=submit.model_version,
        tokenizer_version=submit.tokenizer_version,
        runtime_revision=runtime_revision,
        prompt_tokens=len(submit.prompt_token_ids),
        spec=spec.SerializeToString(),
        accepted_at=now,
        opened_time=wall,
        deadline=_deadline(submit, now),
        resume_lease_s=submit.resume_lease_us / 1e6,
        owner_epoch=submit.owner_epoch,
        opened=opened,
    )


def verdict(settle: scheduler_pb2.Settle) -> Verdict:
    """Read an owner's verdict."""
    return Verdict(
        owner_epoch=settle.owner_epoch,
        finish_reason=member(FinishReason, settle.finish_reason, "finish_reason"),
        output_tokens=tuple(settle.output_tokens),
        input_tokens=settle.input_tokens,
        cached_tokens=settle.cached_tokens,
        queue_us=settle.queue_us,
        ttft_us=settle.ttft_us,
        total_us=settle.total_us,
        error_reason=settle.error_reason,
        choice_reasons=tuple(
            member(FinishReason, reason, "choice_finish_reason") for reason in settle.choice_finish_reason
        ),
    )


def member(kind: type[Member], number: int, field: str) -> Member:
    """Read an enum that has the same numbers here, or refuse the field."""
    try:
        return kind(number)
    except ValueError:
        raise invalid(field, f"{number} is not a value of {kind.__name__}") from None


def responses(notices: Iterable[Notice]) -> Iterator[scheduler_pb2.LaneResponse]:
    """Pack what one stream is told, in order: what lanes did in as few messages as may be."""
    effects: list[Effect] = []
    for notice in notices:
        if isinstance(notice, _EFFECTS):
            effects.append(notice)
            continue
        if effects:
            yield lane_step(effects)
            effects = []
        yield _response(notice)
    if effects:
        yield lane_step(effects)


def _response(notice: Attached | Granted | Settled | Sync) -> scheduler_pb2.LaneResponse:
    match notice:
        case Attached():
            return scheduler_pb2.LaneResponse(attached=_attached(notice))
        case Granted():
            granted = scheduler_pb2.Granted(request_id=notice.request_id, owner_epoch=notice.owner_epoch)
            return scheduler_pb2.LaneResponse(granted=granted)
        case Settled():
            return scheduler_pb2.LaneResponse(settled=_settled(notice.request_id, notice.verdict))
        case Sync(number):
            return scheduler_pb2.LaneResponse(sync=scheduler_pb2.Sync(number=number))


def _attached(notice: Attached) -> scheduler_pb2.Attached:
    record, order, now = notice.record, notice.record.order, notice.at
    submit = scheduler_pb2.Submit.FromString(order.spec)
    if order.deadline is not None:
        submit.deadline_us = max(0, int((order.deadline - now) * 1e6))
    message = scheduler_pb2.Attached(
        request_id=order.request_id,
        owner_epoch=notice.owner_epoch,
        submit=submit,
        record=generation(record, notice.state),
        runtime_revision=order.runtime_revision,
        opened_time_us=round(order.opened_time * 1e6),
        age_us=round((now - order.accepted_at) * 1e6),
    )
    if record.first_token_at is not None:
        message.first_token_us = round((record.first_token_at - order.accepted_at) * 1e6)
    return message


def lane_step(effects: Sequence[Effect]) -> scheduler_pb2.LaneResponse:
    """Pack what happened to one gateway's requests into one message."""
    tokens = [effect for effect in effects if isinstance(effect, TokenCommitted)]
    request_ids, choices, indices, token_ids, details = zip(*tokens, strict=True) if tokens else ((),) * 5
    step = scheduler_pb2.LaneStep(
        request_id=request_ids,
        choice=choices,
        index=indices,
        token_id=token_ids,
        choice_end=[_choice_end(effect) for effect in effects if isinstance(effect, ChoiceEnded)],
        request_end=[_request_end(effect) for effect in effects if isinstance(effect, RequestEnded)],
    )
    for row, detail in enumerate(details):
        if detail is not None:
            write_logprobs(step.logprobs, row, detail)
    return scheduler_pb2.LaneResponse(step=step)


def _choice_end(effect: ChoiceEnded) -> scheduler_pb2.ChoiceEnd:
    return scheduler_pb2.ChoiceEnd(
        request_id=effect.request_id,
        choice=effect.choice,
        finish_reason=finish_reason(effect.reason),
        output_tokens=effect.output_tokens,
        error_reason=effect.error_reason,
    )


def _request_end(effect: RequestEnded) -> scheduler_pb2.RequestEnd:
    return scheduler_pb2.RequestEnd(
        request_id=effect.request_id,
        input_tokens=effect.input_tokens,
        cached_tokens=effect.cached_tokens,
        queue_us=int(effect.queue_s * 1e6),
    )


def finish_reason(reason: FinishReason | None) -> inference_pb2.FinishReason:
    """Write a finish reason; both enums have the same numbers."""
    return cast("inference_pb2.FinishReason", int(reason or 0))


def generation(record: Record, state: State) -> scheduler_pb2.GetGenerationResponse:
    """Write a record."""
    response = scheduler_pb2.GetGenerationResponse(
        state=generation_state(state),
        model_version=record.order.model_version,
        prompt_tokens=record.order.prompt_tokens,
        text_spec=scheduler_pb2.Submit.FromString(record.order.spec).text_spec,
    )
    for log in record.choices:
        choice = response.choice.add(
            token_id=log.token_ids,
            finish_reason=finish_reason(log.finish_reason),
            error_reason=log.error_reason,
        )
        for row, entry in enumerate(log.logprobs):
            write_logprobs(choice.logprobs, row, entry)
    if record.end is not None:
        response.end.CopyFrom(_request_end(record.end))
    if record.verdict is not None:
        response.settled.CopyFrom(_settled(record.order.request_id, record.verdict))
    return response


def _settled(request_id: int, verdict: Verdict) -> scheduler_pb2.Settle:
    return scheduler_pb2.Settle(
        request_id=request_id,
        owner_epoch=verdict.owner_epoch,
        finish_reason=finish_reason(verdict.finish_reason),
        output_tokens=verdict.output_tokens,
        input_tokens=verdict.input_tokens,
        cached_tokens=verdict.cached_tokens,
        queue_us=verdict.queue_us,
        ttft_us=verdict.ttft_us,
        total_us=verdict.total_us,
        error_reason=verdict.error_reason,
        choice_finish_reason=map(finish_reason, verdict.choice_reasons),
    )


def generation_state(state: State) -> inference_pb2.GenerationState:
    """Write a state; both enums have the same numbers."""
    return cast("inference_pb2.GenerationState", int(state))
