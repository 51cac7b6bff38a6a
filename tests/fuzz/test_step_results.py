"""Workers that answer anything at all: a lane takes it or loses the worker, and nobody else notices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from services.scheduler.adapters import protos
from services.scheduler.core.errors import LaneError
from services.scheduler.core.messages import ChoiceEnded, RequestEnded, Sampling, TokenCommitted
from tests.fuzz.messages import messages
from tests.unit.scheduler_core.harness import CAPACITY, LIMITS, Caller, Harness
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.scheduler.core.messages import Effect, StepPlan
    from tests.fuzz.runner import Fuzzer

    Answer = Callable[[worker_pb2.StepResult], object]

SLOTS = st.integers(-1, CAPACITY.slot_count)
TOKENS = st.integers(-1, CAPACITY.vocab_size) | st.sampled_from([2**31 - 1, -(2**31)])
FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 0.5, -1.0])
COLUMNS = st.lists(
    st.tuples(SLOTS, FLOATS, st.integers(-1, 3), st.lists(st.tuples(TOKENS, FLOATS), max_size=3)), max_size=3
)


class Suspicious(Harness):
    """Does not expect the truth about requests that were on a worker which lies."""

    def __init__(self, **options: Any) -> None:
        self.tainted: set[int] = set()
        super().__init__(**options)

    def _hear(self, effect: Effect) -> None:
        if effect.request_id not in self.tainted:
            super()._hear(effect)
            return
        caller = self.callers[effect.request_id]
        assert caller.end is None, "a message after the terminal one"
        if isinstance(effect, RequestEnded):
            caller.end = effect
        elif isinstance(effect, ChoiceEnded):
            assert effect.choice not in caller.ends
            caller.ends[effect.choice] = effect
        else:
            self._hear_token(caller, effect)

    def _hear_token(self, caller: Caller, effect: TokenCommitted) -> None:
        tokens = caller.tokens[effect.choice]
        assert effect.index == len(tokens)
        assert 0 <= effect.token_id < CAPACITY.vocab_size
        tokens.append(effect.token_id)
        if effect.logprobs is not None:
            values = [effect.logprobs.logprob, *(logprob for _, logprob in effect.logprobs.top)]
            assert all(map(math.isfinite, values)), "JSON has no such number"


def lies() -> st.SearchStrategy[list[list[Answer]]]:
    """For each step, what is done to an honest answer."""
    one = st.one_of(
        st.builds(_set, st.sampled_from(["epoch", "step"]), st.integers(-1, 9)),
        st.builds(_row, SLOTS, TOKENS),
        st.builds(_error, SLOTS, st.text(max_size=5)),
        st.builds(_overwrite, st.sampled_from(["slot", "token_id"]), st.integers(0, 9), SLOTS | TOKENS),
        st.builds(_logprobs, COLUMNS),
        st.builds(_cut, st.sampled_from(["slot", "token_id", "row_error"])),
        st.builds(_replace, messages(worker_pb2.StepResult, {"epoch": st.just(1), "slot": SLOTS})),
    )
    return st.lists(st.lists(one, max_size=3), min_size=1, max_size=5)


def _set(name: str, value: int) -> Answer:
    return lambda result: setattr(result, name, value)


def _row(slot: int, token: int) -> Answer:
    def change(result: worker_pb2.StepResult) -> None:
        result.slot.append(slot)
        result.token_id.append(token)

    return change


def _error(slot: int, reason: str) -> Answer:
    return lambda result: result.row_error.add(slot=slot, reason=reason)


def _overwrite(name: str, place: int, value: int) -> Answer:
    def change(result: worker_pb2.StepResult) -> None:
        column = getattr(result, name)
        if column:
            column[place % len(column)] = value

    return change


def _logprobs(columns: list[tuple[int, float, int, list[tuple[int, float]]]]) -> Answer:
    def change(result: worker_pb2.StepResult) -> None:
        for row, logprob, count, top in columns:
            rows = len(result.slot)
            result.logprobs.row.append(row % rows if rows and count >= 0 else row)
            result.logprobs.logprob.append(logprob)
            result.logprobs.top_count.append(len(top) if count else 0)
            result.logprobs.top_token_id.extend(token for token, _ in top)
            result.logprobs.top_logprob.extend(value for _, value in top)

    return change


def _cut(name: str) -> Answer:
    return lambda result: result.ClearField(name)


def _replace(other: worker_pb2.StepResult) -> Answer:
    def change(result: worker_pb2.StepResult) -> None:
        step = result.step
        result.CopyFrom(other)
        result.step = result.step or step

    return change


def honest(plan: StepPlan) -> worker_pb2.StepResult:
    """An answer of the right shape."""
    tokens = [slot % CAPACITY.vocab_size for slot in plan.slot]
    return worker_pb2.StepResult(epoch=plan.epoch, step=plan.step, slot=plan.slot, token_id=tokens)


def test_a_worker_that_answers_anything_disturbs_only_what_ran_on_it(fuzz: Fuzzer) -> None:
    def check(steps: list[list[Answer]]) -> None:
        depth = 1 + len(steps) % 2
        harness = Suspicious(limits=replace(LIMITS, pipeline_depth=depth), replicas=2)
        for number in range(6):
            sampling = Sampling(seed=number + 1, top_logprobs=number % 3 or None)
            harness.submit(5 + number * 3, 6, n=1 + number % 2, sampling=sampling)
        fuzz.tally.past += 1
        harness.step()
        while harness.results["w0"]:
            harness.commit("w0")
        lie(harness, steps)
        harness.lose("w0")
        harness.attach("w2")
        harness.run()
        assert all(caller.end for caller in harness.callers.values())
        status = harness.lane.status()
        assert (status.running, status.waiting, status.owned_pages) == (0, 0, 0)

    fuzz(lies(), check, cases=120)


def lie(harness: Suspicious, steps: list[list[Answer]]) -> None:
    """Let w0 answer so, until a step is overdue or the lane will not have it any more."""
    for changes in steps:
        plan = harness.lane.plan("w0", harness.now)
        harness.drain_effects()
        replica = harness.lane._replicas["w0"]
        harness.tainted |= {sequence.request_id for sequence in replica.running}
        if plan is None:
            return
        result = honest(plan)
        for change in changes:
            change(result)
        # What goes over the wire comes as the other side reads it.
        received = worker_pb2.StepResult.FromString(result.SerializeToString())
        try:
            harness.lane.commit("w0", protos.step_result(received), harness.now)
        except LaneError:
            return
        finally:
            harness.drain_effects()
        assert harness.lane.check_integrity() == []
