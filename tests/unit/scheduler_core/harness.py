"""A lane with literal workers, a clock and a caller that checks every message it gets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import pytest

from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import (
    Capacity,
    ChoiceEnded,
    Effect,
    FinishReason,
    Request,
    RequestEnded,
    Sampling,
    StepPlan,
    StepResult,
    TokenCommitted,
)
from tests.unit.scheduler_core.model_worker import ModelWorker, oracle

CAPACITY = Capacity(
    page_size=4, page_count=32, slot_count=8, max_step_tokens=32, context_length=96, vocab_size=50
)
LIMITS = LaneLimits(chunk_tokens=8, watermark=0.05)
COMPLETE = {FinishReason.STOP, FinishReason.LENGTH}
BOTH_DEPTHS = pytest.mark.parametrize("depth", [1, 2])


@dataclass
class Caller:
    """What the owner of one request has heard."""

    request: Request
    tokens: list[list[int]]
    ends: dict[int, ChoiceEnded] = field(default_factory=dict)
    end: RequestEnded | None = None


class Harness:
    """Drives a lane step by step; every assertion of the message protocol lives here."""

    def __init__(self, limits: LaneLimits = LIMITS, capacity: Capacity = CAPACITY, replicas: int = 1) -> None:
        self.lane = Lane("toy@1", limits)
        self.capacity = capacity
        self.now = 100.0
        self.step_s = 0.01
        self.callers: dict[int, Caller] = {}
        self.workers: dict[str, ModelWorker] = {}
        self.results: dict[str, deque[StepResult]] = {}
        self.plans: list[StepPlan] = []
        self.landed: deque[tuple[str, StepResult]] = deque(maxlen=8)
        self._ids = 0
        self._epoch = 0
        for number in range(replicas):
            self.attach(f"w{number}")

    def attach(self, replica_id: str, capacity: Capacity | None = None) -> None:
        self._epoch += 1
        capacity = capacity or self.capacity
        self.workers[replica_id] = ModelWorker(capacity, self._epoch)
        self.results[replica_id] = deque()
        self.lane.add_replica(replica_id, capacity, self._epoch, self.now)
        self.drain_effects()

    def lose(self, replica_id: str) -> None:
        del self.workers[replica_id], self.results[replica_id]
        self.lane.remove_replica(replica_id, self.now)
        self.drain_effects()

    def request(
        self, prompt: int | list[int] | tuple[int, ...], output: int = 4, **fields: object
    ) -> Request:
        """Make a request; an int is the length of a prompt that shares nothing with others."""
        self._ids += 1
        if isinstance(prompt, int):
            prompt = [(self._ids * 7 + at) % self.capacity.vocab_size for at in range(prompt)]
        values: dict[str, object] = {
            "tenant_id": "tenant",
            "sampling": Sampling(seed=self._ids),
        }
        return Request(self._ids, prompt=tuple(prompt), max_output_tokens=output, **(values | fields))  # type: ignore[arg-type]

    def submit(self, prompt: int | list[int] | tuple[int, ...], output: int = 4, **fields: object) -> int:
        return self.submit_request(self.request(prompt, output, **fields))

    def submit_request(self, request: Request) -> int:
        self.lane.submit(request, self.now)
        self.callers[request.request_id] = Caller(request, [[] for _ in range(request.n)])
        return request.request_id

    def cancel(self, request_id: int, **fields: object) -> None:
        self.lane.cancel(request_id, self.now, **fields)  # type: ignore[arg-type]
        self.drain_effects()

    def plan(self, replica_id: str = "w0") -> StepPlan | None:
        """Build, check and execute one plan; its result waits for `commit`."""
        worker = self.workers[replica_id]
        plan = self.lane.plan(replica_id, self.now)
        self.drain_effects()
        if plan is not None:
            self.plans.append(plan)
            decodes = worker.waiting_decodes()
            self.results[replica_id].append(worker.execute(plan))
            self._check_rows(replica_id, plan, decodes)
        return plan

    def commit(self, replica_id: str = "w0") -> None:
        self.now += self.step_s
        result = self.results[replica_id].popleft()
        self.lane.commit(replica_id, result, self.now)
        self.landed.append((replica_id, result))
        self.drain_effects()
        assert self.lane.check_integrity() == []

    def step(self) -> bool:
        """Fill every pipeline, then land the oldest step of each worker; say whether anything ran."""
        for replica_id in self.workers:
            while self.plan(replica_id) is not None:
                pass
        assert self.lane.check_integrity() == []
        landed = [replica_id for replica_id, results in self.results.items() if results]
        for replica_id in landed:
            self.commit(replica_id)
        if not landed:
            self.now += self.step_s
        return bool(landed)

    def run(self, most: int = 2000) -> int:
        """Step until nothing is left; return how many steps it took."""
        for steps in range(most):
            if not self.lane.status().requests:
                return steps
            self.step()
        raise AssertionError(f"not done after {most} steps: {self.lane.status()}")

    def drain_effects(self) -> list[Effect]:
        effects = self.lane.effects()
        for effect in effects:
            self._hear(effect)
        return effects

    def reason(self, request_id: int, choice: int = 0) -> FinishReason | None:
        end = self.callers[request_id].ends.get(choice)
        return end.reason if end is not None else None

    def tokens(self, request_id: int, choice: int = 0) -> list[int]:
        return self.callers[request_id].tokens[choice]

    def expected(self, request_id: int, choice: int = 0) -> list[int]:
        return oracle(self.callers[request_id].request, choice, self.capacity)

    def _hear(self, effect: Effect) -> None:
        caller = self.callers[effect.request_id]
        assert caller.end is None, "a message after the terminal one"
        if isinstance(effect, RequestEnded):
            assert len(caller.ends) == caller.request.n, "the terminal message came before a choice's end"
            caller.end = effect
            return
        assert effect.choice not in caller.ends, "a message after the choice's end"
        tokens = caller.tokens[effect.choice]
        if isinstance(effect, TokenCommitted):
            assert effect.index == len(tokens)
            tokens.append(effect.token_id)
            return
        caller.ends[effect.choice] = effect
        assert effect.output_tokens <= len(tokens)
        expected = oracle(caller.request, effect.choice, self.capacity)
        assert tokens == expected[: len(tokens)], "tokens depend on what else ran"
        if effect.reason in COMPLETE and effect.output_tokens == len(tokens):
            assert tokens == expected

    def _check_rows(self, replica_id: str, plan: StepPlan, decodes: set[int]) -> None:
        """No row of an ended choice; and whatever can decode does, before any prompt."""
        worker = self.workers[replica_id]
        for slot in plan.slot:
            caller, choice = self._whose(worker, slot)
            assert choice not in caller.ends, "an ended choice is planned"
        held = {page for one in worker.residents.values() for page in one.pages}
        for slot in decodes - set(plan.drop) - set(plan.slot):
            caller, _ = self._whose(worker, slot)
            most = min(
                len(caller.request.prompt) + caller.request.max_output_tokens, self.capacity.context_length
            )
            ends = len(worker.residents[slot].tokens) >= most
            assert ends or len(held) == worker.capacity.page_count, f"slot {slot} was passed over"

    def _whose(self, worker: ModelWorker, slot: int) -> tuple[Caller, int]:
        new = worker.residents[slot].new
        return self.callers[new.sampling.seed], new.choice


def at(depth: int, **fields: object) -> Harness:
    """A harness of this pipeline depth, with these capacities."""
    return Harness(replace(LIMITS, pipeline_depth=depth), replace(CAPACITY, **fields))
