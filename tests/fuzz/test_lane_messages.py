"""The scheduler among gateways and workers that send anything: honest ones are served as before."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import strategies as st

from kit.grpc import LANE_MESSAGE_BYTES, channel
from tests.fuzz.messages import messages
from tests.fuzz.test_step_results import lies
from tests.integration.scheduler.support import FINISH, MODEL, House, PlayedWorker
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.fuzz.runner import Fuzzer
    from tests.fuzz.test_step_results import Answer
    from tokenloom.api.worker.v1 import worker_pb2

    Eventually = Callable[..., Awaitable[None]]

IDS = st.integers(-1, 12)
NAMES = {
    "request_id": IDS,
    "model_version": st.just(MODEL) | st.text(max_size=8),
    "tenant_id": st.sampled_from(["acme", "rival", ""]),
    "prompt_token_ids": st.integers(0, 999) | st.integers(-1, 1000),
    "max_output_tokens": st.integers(-1, 8),
    "n": st.integers(-1, 4),
    "owner_epoch": st.integers(-1, 3),
    "deadline_us": st.sampled_from([-1, 0, 1, 10**4, 10**9]),
    "kept_tokens": st.integers(-1, 6),
    "choice": st.integers(-1, 3),
    "output_tokens": st.integers(-1, 6),
    "top_logprobs": st.integers(-1, 30),
}
REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.CANCELLED, grpc.StatusCode.OK}
Message = scheduler_pb2.LaneRequest


class Liar(PlayedWorker):
    """Answers honestly, and then not."""

    def __init__(self, target: str, incarnation: str, steps: Sequence[Sequence[Answer]]) -> None:
        super().__init__(target, incarnation)
        self._steps = iter(steps)

    def _answer(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        result: worker_pb2.StepResult = super()._answer(plan)
        for change in next(self._steps, ()):
            change(result)
        return result


@pytest.fixture
async def house(nats_url: str, tmp_path: Path) -> AsyncIterator[House]:
    async with House.opened(nats_url, tmp_path) as house:
        yield house


async def start(house: House, **settings: float) -> None:
    """A scheduler with one honest worker."""
    house.start(**settings)
    await house.announce(await house.worker())
    await house.until_lane(lambda lane: lane.workers == 1)


async def served(house: House, eventually: Eventually, ids: itertools.count[int]) -> None:
    """The honest gateway's next request gets all of its tokens, and the accounts are right."""
    gateway, request_id = house.gateways[0], next(ids)
    await gateway.submit(request_id, prompt=(1, 2), output=4)
    await eventually(lambda: gateway.seen[request_id].request_end)
    assert gateway.seen[request_id].tokens == [3, 4, 5, 6]
    await gateway.settle(request_id, output=4)
    lane = await house.until_lane(lambda lane: not (lane.running or lane.waiting or lane.owned_pages))
    assert list(lane.violations) == []
    assert house.done is not None
    assert not house.done.done()


async def test_a_gateway_that_sends_anything_disturbs_no_other(
    house: House, fuzz: Fuzzer, eventually: Eventually
) -> None:
    await start(house)
    ids = itertools.count(1000)
    await house.gateway("honest")

    async def check(sent: Sequence[Message]) -> None:
        fuzz.tally.past += await converse(house.target, sent)
        await served(house, eventually, ids)

    await fuzz.on_loop(st.lists(requests(), min_size=1, max_size=8), check, cases=40)


def requests() -> st.SearchStrategy[Message]:
    """Any message, and submissions that are taken."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "request_id": st.integers(1, 12),
        "tenant_id": st.just("acme"),
        "model_version": st.just(MODEL),
        "prompt_token_ids": st.lists(st.integers(0, 999), min_size=1, max_size=20),
        "max_output_tokens": st.integers(1, 8),
        "n": st.integers(1, 3),
    }
    submit = st.fixed_dictionaries(fields).map(
        lambda members: Message(submit=scheduler_pb2.Submit(**members))
    )
    return submit | messages(Message, NAMES)


async def converse(target: str, sent: Sequence[Message]) -> bool:
    """Say hello and all of it as a gateway of its own; returns whether anything was accepted."""
    taken = False
    async with channel(target, max_message_bytes=LANE_MESSAGE_BYTES) as connection:
        call = scheduler_pb2_grpc.SchedulerServiceStub(connection).Lane()
        try:
            hello = scheduler_pb2.Hello(gateway_id=f"liar-{random.getrandbits(32)}")
            for message in (Message(hello=hello), *sent):
                await call.write(message)
            async with asyncio.timeout(0.02):
                while isinstance(answer := await call.read(), scheduler_pb2.LaneResponse):
                    taken |= answer.HasField("accepted")
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        call.cancel()
        assert await call.code() in REFUSALS, await call.details()
    return taken


async def test_a_worker_that_answers_anything_costs_only_what_ran_on_it(
    house: House, fuzz: Fuzzer, eventually: Eventually
) -> None:
    await start(house, step_timeout_s=0.5)  # a lie may be no answer
    ids, liars = itertools.count(1000), itertools.count(2)
    gateway = await house.gateway("honest")

    async def check(steps: Sequence[Sequence[Answer]]) -> None:
        name = f"w{next(liars)}"
        liar = await Liar(f"unix:{house.directory}/{name}", name, steps).start()
        await house.announce(liar, worker_id=name)
        await house.until_lane(lambda lane: lane.workers == 2)
        asked = [next(ids) for _ in range(4)]
        for request_id in asked:
            await gateway.submit(request_id, prompt=(1, 2), output=4)
        fuzz.tally.past += 1
        await eventually(lambda: all(gateway.seen[request_id].request_end for request_id in asked))
        for request_id in asked:
            await gateway.settle(request_id, reason=FINISH.FINISH_REASON_LENGTH, output=4)
        await liar.die()
        await house.announce(liar, "GONE", worker_id=name)
        await house.until_lane(lambda lane: lane.workers == 1)
        await served(house, eventually, ids)

    await fuzz.on_loop(lies(), check, cases=20)
