"""A gateway whose scheduler sends anything: it may lose that scheduler, and serves again with the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import strategies as st

from services.gateway.adapters import lane
from tests.fuzz.messages import messages
from tests.integration.gateway.conftest import bus, launch, platform, toy_artifact
from tests.integration.gateway.peers import LENGTH
from tokenloom.api.inference.v1 import inference_pb2, inference_pb2_grpc
from tokenloom.api.scheduler.v1 import scheduler_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fuzz.runner import Fuzzer
    from tests.integration.gateway.conftest import Platform
    from tests.integration.gateway.peers import Job, Script
    from tokenloom.api.inference.v1.inference_pb2_grpc import InferenceServiceAsyncStub

__all__ = ["bus", "launch", "platform", "toy_artifact"]

MINE = 77  # stands for the id of the request that waits for its answer
NAMES = {
    "request_id": st.just(MINE) | st.integers(-1, 3),
    "choice": st.integers(-1, 2),
    "index": st.integers(-1, 4),
    "token_id": st.integers(-1, 300),
    "owner_epoch": st.integers(-1, 3),
    "output_tokens": st.integers(-1, 4),
    "row": st.integers(-1, 3),
    "top_count": st.integers(-1, 2),
    "finish_reason": st.integers(0, 7),
}
Answer = scheduler_pb2.LaneResponse


def answers() -> st.SearchStrategy[list[Answer]]:
    """What comes instead of, or besides, an honest answer."""
    return st.lists(messages(Answer, NAMES), min_size=1, max_size=6)


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case loses the lane."""
    monkeypatch.setattr(lane, "_LAST_RETRY_S", lane._FIRST_RETRY_S)


async def test_a_scheduler_that_answers_anything_costs_only_what_it_was_asked(
    no_backoff: None, platform: Platform, fuzz: Fuzzer
) -> None:
    async with platform.grpc() as connection:
        stub = inference_pb2_grpc.InferenceServiceStub(connection)

        async def check(sent: Sequence[Answer]) -> None:
            honest = platform.says("ab", reason=LENGTH)
            platform.scheduler.script = lying(sent, honest)
            await ask(platform, stub)
            platform.scheduler.script = honest
            for attempt in range(50):
                kinds = await ask(platform, stub)
                if kinds[-1:] == ["done"]:
                    break
                await asyncio.sleep(0.05 * (attempt + 1))
            assert kinds == ["accepted", *["tokens"] * (len(kinds) - 2), "done"]
            assert not platform.task.done()

        await fuzz.on_loop(answers(), check, cases=20)
    fuzz.tally.past = fuzz.tally.cases


def lying(sent: Sequence[Answer], after: Script) -> Script:
    """A script that sends all of it and leaves; the next scheduler is an honest one."""

    async def script(job: Job) -> None:
        for answer in sent:
            named = Answer.FromString(answer.SerializeToString())
            _put(named, job.id)
            job.scheduler.send(named)
        job.scheduler.script = after
        job.scheduler.hang_up()

    return script


def _put(message: Any, request_id: int) -> None:
    """Put the waiting request's id wherever MINE stands."""
    for field, value in message.ListFields():
        if field.name == "request_id":
            if field.is_repeated:
                value[:] = [request_id if one == MINE else one for one in value]
            elif value == MINE:
                message.request_id = request_id
        elif field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                _put(one, request_id)


async def ask(platform: Platform, stub: InferenceServiceAsyncStub) -> list[str]:
    """Generate, and return the kinds of events that came before the end or the error."""
    request = inference_pb2.GenerateRequest(model="toy", prompt="x", max_output_tokens=4)
    call, kinds = stub.Generate(request, metadata=platform.metadata(), timeout=10), []
    try:
        while isinstance(event := await call.read(), inference_pb2.GenerateResponse):
            kinds.append(str(event.WhichOneof("event")))
    except grpc.aio.AioRpcError as error:
        kinds.append(error.code().name)
    return kinds
