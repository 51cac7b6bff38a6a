"""Lane values <-> protos."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar, cast

from kit.errors import invalid
from services.scheduler.core.errors import MalformedResult
from services.scheduler.core.messages import (
    Capacity,
    ChoiceEnded,
    Effect,
    FinishReason,
    Logprobs,
    NewSequence,
    Priority,
    Request,
    RequestEnded,
    Sampling,
    State,
    StepPlan,
    StepResult,
    TokenCommitted,
)
from services.scheduler.core.records import Order, Record, Verdict
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenloom.api.inference.v1 import inference_pb2

Member = TypeVar("Member", bound=enum.IntEnum)


def capacity(described: worker_pb2.DescribeResponse) -> Capacity:
    """Read what a worker can hold."""
    return Capacity(
        page_size=described.page_size,
        page_count=described.page_count,
        slot_count=described.slot_count,
        max_step_tokens=described.max_step_tokens,
        context_length=described.context_length,
        vocab_size=described.vocab_size,
    )


def plan_message(plan: StepPlan) -> worker_pb2.RunRequest:
    """Write a plan."""
    message = worker_pb2.StepPlan(
        epoch=plan.epoch,
        step=plan.step,
        drop=plan.drop,
        add=[_sequence(sequence) for sequence in plan.add],
        slot=plan.slot,
        token_count=plan.token_count,
        page_slot=plan.page_slot,
        page=plan.page,
    )
    return worker_pb2.RunRequest(plan=message)


def _sequence(sequence: NewSequence) -> worker_pb2.Sequence:
    sampling = sequence.sampling
    return worker_pb2.Sequence(
        slot=sequence.slot,
        sequence_id=sequence.sequence_id,
        token_ids=sequence.token_ids,
        prompt_len=sequence.prompt_len,
        computed_len=sequence.computed_len,
        pages=sequence.pages,
        choice=sequence.choice,
        sampling=worker_pb2.Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            top_logprobs=sampling.top_logprobs,
        ),
    )


def step_result(message: worker_pb2.StepResult) -> StepResult:
    """Read a result, or raise MalformedResult."""
    columns, rows = message.logprobs, len(message.slot)
    alternatives = sum(columns.top_count)
    if not (
        len(message.token_id) == rows
        and len(columns.row) == len(columns.logprob) == len(columns.top_count)
        and len(columns.top_token_id) == len(columns.top_logprob) == alternatives
        and all(0 <= row < rows for row in columns.row)
    ):
        raise MalformedResult("the columns of a result disagree")
    return StepResult(
        epoch=message.epoch,
        step=message.step,
        slot=list(message.slot),
        token_id=list(message.token_id),
        logprobs=_read_logprobs(columns),
        row_error={error.slot: error.reason for error in message.row_error},
    )


def _read_logprobs(columns: worker_pb2.LogprobColumns) -> dict[int, Logprobs]:
    rows, start = {}, 0
    for row, logprob, count in zip(columns.row, columns.logprob, columns.top_count, strict=True):
        end = start + count
        top = zip(columns.top_token_id[start:end], columns.top_logprob[start:end], strict=True)
        rows[row] = Logprobs(logprob, tuple(top))
        start = end
    return rows


def _write_logprobs(columns: worker_pb2.LogprobColumns, row: int, entry: Logprobs) -> None:
    columns.row.append(row)
    columns.logprob.append(entry.logprob)
    columns.top_count.append(len(entry.top))
    columns.top_token_id.extend(token_id for token_id, _ in entry.top)
    columns.top_logprob.extend(logprob for _, logprob in entry.top)


def request(submit: scheduler_pb2.Submit, owner: str, now: float) -> Request:
    """Read a submission; a deadline becomes an instant on our clock."""
    sampling = submit.sampling
    return Request(
        request_id=submit.request_id,
        tenant_id=submit.tenant_id,
        owner=owner,
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
        deadline=now + submit.deadline_us / 1e6 if submit.HasField("deadline_us") else None,
        priority=member(Priority, submit.priority or Priority.STANDARD, "priority"),
        tokenizer_version=submit.tokenizer_version,
    )


def order(submit: scheduler_pb2.Submit, runtime_revision: str, now: float, wall: float) -> Order:
    """Read what is kept of a submission."""
    return Order(
        request_id=submit.request_id,
        tenant_id=submit.tenant_id,
        model_version=submit.model_version,
        tokenizer_version=submit.tokenizer_version,
        runtime_revision=runtime_revision,
        prompt_tokens=len(submit.prompt_token_ids),
        n=submit.n,
        text_spec=submit.text_spec,
        accepted_at=now,
        opened_time=wall,
    )


def verdict(settle: scheduler_pb2.Settle) -> Verdict:
    """Read an owner's verdict."""
    reason = member(FinishReason, settle.finish_reason, "finish_reason")
    return Verdict(settle.owner_epoch, reason, tuple(settle.output_tokens))


def member(kind: type[Member], number: int, field: str) -> Member:
    """Read an enum that has the same numbers here, or refuse the field."""
    try:
        return kind(number)
    except ValueError:
        raise invalid(field, f"{number} is not a value of {kind.__name__}") from None


def lane_step(effects: Sequence[Effect]) -> scheduler_pb2.LaneResponse:
    """Pack what happened to one gateway's requests into one message."""
    tokens = [effect for effect in effects if isinstance(effect, TokenCommitted)]
    step = scheduler_pb2.LaneStep(
        request_id=[token.request_id for token in tokens],
        choice=[token.choice for token in tokens],
        index=[token.index for token in tokens],
        token_id=[token.token_id for token in tokens],
        choice_end=[_choice_end(effect) for effect in effects if isinstance(effect, ChoiceEnded)],
        request_end=[_request_end(effect) for effect in effects if isinstance(effect, RequestEnded)],
    )
    for row, token in enumerate(tokens):
        if token.logprobs is not None:
            _write_logprobs(step.logprobs, row, token.logprobs)
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
        text_spec=record.order.text_spec,
    )
    for log in record.choices:
        choice = response.choice.add(token_id=log.token_ids, finish_reason=finish_reason(log.finish_reason))
        for row, entry in enumerate(log.logprobs):
            _write_logprobs(choice.logprobs, row, entry)
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
    )


def generation_state(state: State) -> inference_pb2.GenerationState:
    """Write a state; both enums have the same numbers."""
    return cast("inference_pb2.GenerationState", int(state))


def request_ids(effects: Iterable[Effect]) -> list[int]:
    """Return the requests that ended among these effects."""
    return [effect.request_id for effect in effects if isinstance(effect, RequestEnded)]
