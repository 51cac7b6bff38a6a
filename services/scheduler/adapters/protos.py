"""Lane values <-> the step protocol."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from services.scheduler.core.errors import MalformedResult
from services.scheduler.core.messages import Capacity, Logprobs, NewSequence, StepPlan, StepResult
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    if len(message.token_id) != rows or not agree(columns, rows):
        raise MalformedResult("the columns of a result disagree")
    return StepResult(
        epoch=message.epoch,
        step=message.step,
        slot=list(message.slot),
        token_id=list(message.token_id),
        logprobs=dict(read_logprobs(columns)),
        row_error={error.slot: error.reason for error in message.row_error},
    )


def agree(columns: worker_pb2.LogprobColumns, rows: int) -> bool:
    """Whether log-probability columns fit each other and arrays of `rows` rows, and hold numbers."""
    alternatives = sum(columns.top_count)
    return (
        len(columns.row) == len(columns.logprob) == len(columns.top_count)
        and len(columns.top_token_id) == len(columns.top_logprob) == alternatives
        and min(columns.top_count, default=0) >= 0
        and all(0 <= row < rows for row in columns.row)
        and all(map(math.isfinite, columns.logprob))
        and all(map(math.isfinite, columns.top_logprob))
    )


def read_logprobs(columns: worker_pb2.LogprobColumns) -> Iterable[tuple[int, Logprobs]]:
    """Give each row of columns that agree with its values."""
    start = 0
    for row, logprob, count in zip(columns.row, columns.logprob, columns.top_count, strict=True):
        end = start + count
        top = zip(columns.top_token_id[start:end], columns.top_logprob[start:end], strict=True)
        yield row, Logprobs(logprob, tuple(top))
        start = end


def write_logprobs(columns: worker_pb2.LogprobColumns, row: int, entry: Logprobs) -> None:
    """Append one row's values to columns."""
    columns.row.append(row)
    columns.logprob.append(entry.logprob)
    columns.top_count.append(len(entry.top))
    columns.top_token_id.extend(token_id for token_id, _ in entry.top)
    columns.top_logprob.extend(logprob for _, logprob in entry.top)
