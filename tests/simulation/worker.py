"""A worker: the production step log around an engine that computes a pure function of what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.scheduler.core.messages import Capacity, NewSequence, Sampling, StepPlan, StepResult
from services.worker.core.errors import PlanError
from services.worker.core.steps import Replay, StepLog
from tests.simulation.rpc import Server
from tests.unit.scheduler_core.model_worker import ModelWorker
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from tests.simulation.kernel import World
    from tests.simulation.network import Network, Stream

REVISION = "sim-1"
STEP_S = (0.01, 0.035)


class Worker(Server):
    """Holds one model version. The engine executes plans literally over symbolic KV pages."""

    def __init__(self, network: Network, name: str, model_version: str, capacity: Capacity) -> None:
        super().__init__(network, name)
        self.model_version, self.capacity = model_version, capacity
        self.replays = self.fenced = 0
        self._forget()

    @property
    def incarnation(self) -> str:
        """Names this start of the process."""
        return f"{self.name}-{self.life}"

    def change(self, availability: int) -> events_pb2.WorkerChanged:
        """What the registry says of this worker."""
        return events_pb2.WorkerChanged(
            worker_id=self.name,
            incarnation=self.incarnation,
            target=self.name,
            model_version=self.model_version,
            availability=availability,  # type: ignore[arg-type]
        )

    def on_start(self) -> None:
        self._forget()
        self.streams = {"Run": self._serve}
        self.unaries = {"Describe": self._describe}

    def _forget(self) -> None:
        self._log: StepLog[worker_pb2.StepResult] = StepLog()
        self._engine = ModelWorker(self.capacity, 0)
        self._busy_until = 0.0

    async def _describe(self, request: object, context: object) -> worker_pb2.DescribeResponse:
        capacity = self.capacity
        return worker_pb2.DescribeResponse(
            worker_id=self.name,
            incarnation=self.incarnation,
            state=worker_pb2.WORKER_STATE_READY,
            model_version=self.model_version,
            runtime_revision=REVISION,
            last_epoch=self._log.epoch,
            page_size=capacity.page_size,
            page_count=capacity.page_count,
            slot_count=capacity.slot_count,
            max_step_tokens=capacity.max_step_tokens,
            context_length=capacity.context_length,
            vocab_size=capacity.vocab_size,
        )

    def _serve(self, stream: Stream) -> None:
        """Run the plans of a stream in order; after a refusal the stream ends."""
        stream.up.receive = lambda request: self._queue(stream, request)

    def _queue(self, stream: Stream, request: Any) -> None:
        now = self.world.now
        stream.up.was_read()
        self._busy_until = max(now, self._busy_until) + self.world.rng.uniform(*STEP_S)
        if request is None:
            self.after(self._busy_until - now, lambda: stream.close(by_client=False))
            return
        self.after(self._busy_until - now, lambda: self._execute(stream, request.plan))

    def _execute(self, stream: Stream, plan: worker_pb2.StepPlan) -> None:
        try:
            admitted = self._log.admit(plan.epoch, plan.step)
        except PlanError as error:
            self.fenced += 1
            self.world.note(self.name, "refuses", plan.epoch, plan.step, error.reason)
            stream.close(by_client=False)
            return
        if isinstance(admitted, Replay):
            self.replays += 1
            stream.down.send(worker_pb2.RunResponse(result=admitted.result))
            return
        if admitted.reset:
            self._engine = ModelWorker(self.capacity, plan.epoch)
        try:
            result = _result(self._engine.execute(_plan(plan)))
        except AssertionError as error:
            self.world.fail(f"a plan breaks the step protocol: {error!r}")
        self._log.record(plan.epoch, plan.step, result)
        stream.down.send(worker_pb2.RunResponse(result=result))


def capacity_of(world: World) -> Capacity:
    """A small worker, so that pages are short."""
    rng = world.rng
    return Capacity(
        page_size=4,
        page_count=rng.choice((14, 20, 32)),
        slot_count=rng.choice((3, 5, 8)),
        max_step_tokens=rng.choice((8, 16, 24)),
        context_length=48,
        vocab_size=64,
    )


def _plan(plan: worker_pb2.StepPlan) -> StepPlan:
    return StepPlan(
        plan.epoch,
        plan.step,
        list(plan.drop),
        [_sequence(one) for one in plan.add],
        list(plan.slot),
        list(plan.token_count),
        list(plan.page_slot),
        list(plan.page),
    )


def _sequence(one: worker_pb2.Sequence) -> NewSequence:
    return NewSequence(
        slot=one.slot,
        sequence_id=one.sequence_id,
        token_ids=list(one.token_ids),
        prompt_len=one.prompt_len,
        computed_len=one.computed_len,
        pages=list(one.pages),
        choice=one.choice,
        sampling=Sampling(seed=one.sampling.seed),
    )


def _result(result: StepResult) -> worker_pb2.StepResult:
    return worker_pb2.StepResult(
        epoch=result.epoch,
        step=result.step,
        slot=result.slot,
        token_id=result.token_id,
        row_error=[worker_pb2.RowError(slot=slot, reason=why) for slot, why in result.row_error.items()],
    )
