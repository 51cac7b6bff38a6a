"""One step at a time: residency, forward, sampling, and what each row came to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from services.worker.engine.batch import build_batch, row_order
from services.worker.engine.sampling import draw
from services.worker.engine.slots import SlotTable
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from services.worker.engine.batch import Forward, Ints, Pool
    from services.worker.engine.config import EngineConfig
    from services.worker.engine.sampling import Bools, Drawn, Sampler
    from services.worker.engine.spec import ModelSpec


class Runner:
    """An `Engine` (services.worker.core.ports) over a forward and its page pool."""

    def __init__(
        self,
        forward: Forward,
        pool: Pool,
        spec: ModelSpec,
        config: EngineConfig,
        *,
        sampler: Sampler = draw,
        model_version: str,
        runtime_revision: str,
        kv_bytes_per_token: int,
    ) -> None:
        self.model_version = model_version
        self.runtime_revision = runtime_revision
        self.kv_bytes_per_token = kv_bytes_per_token
        self.page_size = pool.page_size
        self.page_count = pool.page_count
        self.slot_count = config.slot_count
        self.max_step_tokens = config.max_step_tokens
        self.context_length = spec.context_length
        self.vocab_size = spec.vocab_size
        self.forward = forward
        self.pool = pool
        self._sampler = sampler
        self._table = SlotTable(
            slot_count=config.slot_count,
            page_count=pool.page_count,
            page_size=pool.page_size,
            context_length=spec.context_length,
            vocab_size=spec.vocab_size,
            max_step_tokens=config.max_step_tokens,
        )

    def reset(self) -> None:
        """Release every slot."""
        self._table.live[:] = False

    @torch.inference_mode()
    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """Run one step; a row that fails ends alone and leaves its slot free."""
        result = worker_pb2.StepResult(epoch=plan.epoch, step=plan.step)
        errors = self._change_residency(plan)
        slots, counts = self._runnable(plan, errors)
        if len(slots):
            self._run(slots, counts, result, errors)
        for slot, reason in errors.items():
            result.row_error.add(slot=slot, reason=reason)
        self._table.drop(list(errors))
        return result

    def _change_residency(self, plan: worker_pb2.StepPlan) -> dict[int, str]:
        errors: dict[int, str] = {}
        self._table.drop(plan.drop)
        for sequence in plan.add:
            if reason := self._table.add(sequence):
                errors.setdefault(sequence.slot, reason)
            elif offset := sequence.computed_len % self.page_size:
                page = sequence.pages[sequence.computed_len // self.page_size]
                self.pool.blank(np.array([page]), offset)
        for slot, page in zip(plan.page_slot, plan.page, strict=True):
            if slot not in errors and (reason := self._table.grow(slot, page)):
                errors[slot] = reason
        return errors

    def _runnable(self, plan: worker_pb2.StepPlan, errors: dict[int, str]) -> tuple[Ints, Ints]:
        slots, counts = np.array(plan.slot, np.int64), np.array(plan.token_count, np.int64)
        refused = self._table.refusals(slots, counts)
        for row, reason in refused.items():
            errors.setdefault(int(slots[row]), reason)
        if errors:
            good = ~np.isin(slots, np.array(list(errors), np.int64))
            slots, counts = slots[good], counts[good]
        order = row_order(self._table, slots, counts)
        return slots[order], counts[order]

    def _run(self, slots: Ints, counts: Ints, result: worker_pb2.StepResult, errors: dict[int, str]) -> None:
        table = self._table
        self._blank_entered_pages(slots, counts)
        started = time.perf_counter()
        batch = build_batch(table, slots, counts)
        logits = self.forward(batch)
        forwarded = time.perf_counter()
        table.computed[slots] += counts
        sampling = slots[batch.contexts == table.known[slots]]
        if len(sampling):
            draws = table.draws(sampling)
            drawn = self._sampler(logits, draws)
            table.append(sampling, drawn.token_id)
            _report(sampling, drawn, draws.top_logprobs, result)
            errors.update(dict.fromkeys(sampling[~drawn.finite].tolist(), "NAN_LOGITS"))
        result.forward_us = int((forwarded - started) * 1e6)
        result.sample_us = int((time.perf_counter() - forwarded) * 1e6)

    def _blank_entered_pages(self, slots: Ints, counts: Ints) -> None:
        """Zero the pages whose first position, but not their last, is written in this step."""
        start = self._table.computed[slots]
        end = start + counts
        last = (end - 1) // self.page_size
        entered = (last * self.page_size >= start) & (end % self.page_size != 0)
        self.pool.blank(self._table.pages[slots[entered], last[entered]].astype(np.int64))


def _report(slots: Ints, drawn: Drawn, asked: Ints, result: worker_pb2.StepResult) -> None:
    """Write the finite rows' tokens and the log-probabilities they asked for."""
    good = np.flatnonzero(drawn.finite)
    result.slot.extend(slots[good].tolist())
    result.token_id.extend(drawn.token_id[good].tolist())
    columns = result.logprobs
    wanting: Bools = asked[good] >= 0
    for position in np.flatnonzero(wanting).tolist():
        row = good[position]
        count = min(int(asked[row]), drawn.top_ids.shape[1])
        columns.row.append(position)
        columns.logprob.append(drawn.logprob[row])
        columns.top_count.append(count)
        columns.top_token_id.extend(drawn.top_ids[row, :count].tolist())
        columns.top_logprob.extend(drawn.top_logprobs[row, :count].tolist())
