"""A real worker that is sent any plan: refused or run row by row, and its next scheduler finds it sound."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import grpc
import pytest
from hypothesis import strategies as st

from kit.grpc import channel
from services.worker.engine import EngineConfig
from tests.fuzz.messages import messages
from tests.integration.worker.support import RunningWorker, registry_at
from tests.unit.worker.engine_driver import TINY, cases_of, seal
from tokenloom.api.worker.v1 import worker_pb2, worker_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from services.worker.engine.runner import Runner
    from tests.fuzz.runner import Fuzzer
    from tokenloom.api.worker.v1.worker_pb2_grpc import WorkerServiceAsyncStub

# After the driver, which sets torch's threads up.
from services.worker.engine.loader import load

PAGE, PAGES, SLOTS = 8, 24, 4
CONFIG = EngineConfig(
    dtype="float32", page_size=PAGE, page_count=PAGES, slot_count=SLOTS, max_step_tokens=64, threads=1
)
REFUSALS = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
CASE = cases_of("llama3-rope")[0]
PROMPT, EXPECTED = CASE["prompt_token_ids"], CASE["greedy_token_ids"][:3]


class RealWorker(RunningWorker):
    """A worker with an engine that computes."""

    stub: WorkerServiceAsyncStub

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._artifact = seal(TINY, directory / "artifact")

    def load(self, directory: Path) -> Runner:
        return load(self._artifact, CONFIG)


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[RealWorker]:
    running = RealWorker(tmp_path)
    async with registry_at(running.registry_target, running.registry), channel(running.target) as to_worker:
        running.start(tmp_path)
        running.stub = worker_pb2_grpc.WorkerServiceStub(to_worker)
        await running.stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
        await running.state(running.stub, worker_pb2.WORKER_STATE_READY)
        yield running
        running.stop.set()
        assert running.done is not None
        await asyncio.wait_for(running.done, 10)


def plans() -> st.SearchStrategy[list[worker_pb2.StepPlan]]:
    """Plans whose numbers are near what the worker has."""
    small = {
        "epoch": st.integers(0, 2),
        "step": st.integers(0, 4),
        "slot": st.integers(-1, SLOTS),
        "drop": st.integers(-1, SLOTS),
        "page_slot": st.integers(-1, SLOTS),
        "pages": st.integers(-1, PAGES),
        "page": st.integers(-1, PAGES),
        "token_count": st.integers(-1, 70),
        "token_ids": st.integers(-1, 384),
        "computed_len": st.integers(-1, 5),
    }
    return st.lists(messages(worker_pb2.StepPlan, small) | sensible(), min_size=1, max_size=4)


def sensible() -> st.SearchStrategy[worker_pb2.StepPlan]:
    """A plan that runs: one sequence, its prompt in one step."""
    sampling = messages(worker_pb2.Sampling, {"temperature": st.floats(0, 2), "seed": st.integers(0, 9)})
    return st.builds(
        lambda slot, length, pages, chosen: worker_pb2.StepPlan(
            add=[
                worker_pb2.Sequence(
                    slot=slot, token_ids=range(3, 3 + length), prompt_len=length, pages=pages, sampling=chosen
                )
            ],
            slot=[slot],
            token_count=[length],
        ),
        st.integers(0, SLOTS - 1),
        st.integers(1, 30),
        st.lists(st.integers(0, PAGES - 1), max_size=5, unique=True),
        sampling,
    )


async def test_any_plan_is_refused_or_run_and_the_next_scheduler_gets_the_right_tokens(
    worker: RealWorker, fuzz: Fuzzer
) -> None:
    epochs = itertools.count(1)

    async def check(sent: Sequence[worker_pb2.StepPlan]) -> None:
        base = next(epochs) * 4
        fuzz.tally.past += await run(worker.stub, base, sent)
        assert await greedy(worker.stub, base + 3) == EXPECTED
        assert worker.done is not None
        assert not worker.done.done()

    await fuzz.on_loop(plans(), check, cases=60)


async def run(stub: WorkerServiceAsyncStub, base: int, sent: Sequence[worker_pb2.StepPlan]) -> int:
    """Send plans in the order of their steps as far as they go; returns whether any was run."""
    call, answered = stub.Run(), 0
    try:
        for step, plan in enumerate(sent, 1):
            plan.epoch += base
            plan.step = plan.step or step
            await call.write(worker_pb2.RunRequest(plan=plan))
            response = await call.read()
            if not isinstance(response, worker_pb2.RunResponse):
                break
            answered = 1
            assert len(response.result.slot) == len(response.result.token_id)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    call.cancel() if not call.done() else None
    if answered < len(sent) and call.done() and not call.cancelled():
        assert await call.code() in REFUSALS, await call.details()
    return answered


async def greedy(stub: WorkerServiceAsyncStub, epoch: int) -> list[int]:
    """What a fresh attachment draws after a known prompt."""
    pages = range(-(-(len(PROMPT) + len(EXPECTED)) // PAGE))
    sequence = worker_pb2.Sequence(
        slot=1,
        token_ids=PROMPT,
        prompt_len=len(PROMPT),
        pages=pages,
        sampling=worker_pb2.Sampling(top_p=1.0),
    )
    call = stub.Run()
    drawn: list[int] = []
    for step in range(1, len(EXPECTED) + 1):
        plan = worker_pb2.StepPlan(epoch=epoch, step=step, slot=[1], token_count=[1])
        if step == 1:
            plan.add.append(sequence)
            plan.token_count[0] = len(PROMPT)
        await call.write(worker_pb2.RunRequest(plan=plan))
        response = await call.read()
        assert isinstance(response, worker_pb2.RunResponse), await call.details()
        drawn += response.result.token_id
    call.cancel()
    return drawn
