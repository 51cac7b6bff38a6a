"""A deadline, whichever face it came through, stops what it finds: a wait, half a prompt, an output."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

import grpc
import pytest

from services.scheduler import servicer
from tests.integration.gateways.conftest import STREAM, sse, started
from tokenloom.api.inference.v1 import inference_pb2 as pb

DEADLINE = pb.FINISH_REASON_DEADLINE
PROMPT = "abcdefgh" * 25
LATE_S = 1.5


async def over_http(pair, prompt):
    body = {"model": "toy", "prompt": prompt, "maxOutputTokens": 40, "deadlineMs": int(LATE_S * 1e3)}
    async with pair.first.http() as client:
        events = sse((await client.post("/v1/generations", json=body, headers=STREAM)).text)
    assert events[-1][0] == "done"
    assert events[-1][1]["finishReason"] == "deadline"


async def over_grpc(pair, prompt):
    call = (await pair.stub(pair.first)).Generate(
        pb.GenerateRequest(model="toy", prompt=prompt, max_output_tokens=40),
        metadata=pair.metadata(),
        timeout=LATE_S,
    )
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    assert await call.code() in {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}


@pytest.fixture
async def pair(nats_url, toy_artifact, tmp_path):
    """A platform for each test: one that has seen slow steps refuses what would be late."""
    async with started(nats_url, toy_artifact, tmp_path) as pair:
        await pair.bus.js.purge_stream("USAGE")
        yield pair


@pytest.fixture(params=[over_http, over_grpc])
def ask(request):
    return request.param


@pytest.fixture(params=[-86400.0, 86400.0], ids=["slow", "fast"])
def skewed(request, monkeypatch):
    """The scheduler's wall clock is wrong by so many seconds."""
    clock = SimpleNamespace(time=lambda: time.time() + request.param, monotonic=time.monotonic)
    monkeypatch.setattr(servicer, "time", clock)


async def idle(pair):
    """Nothing of it is left: no pages, and no row in any plan to come."""
    async with asyncio.timeout(5):
        while (lane := await pair.lane()).owned_pages or lane.waiting or lane.running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert list(lane.violations) == []


async def test_a_deadline_in_the_queue_ends_a_request_that_pays_nothing(pair, ask):
    pair.worker.open.clear()
    try:
        async with pair.second.http() as client:
            first = asyncio.create_task(
                client.post("/v1/generations", json={"model": "toy", "prompt": "abcd", "maxOutputTokens": 2})
            )
            async with asyncio.timeout(5):
                while not (await pair.lane()).running:  # noqa: ASYNC110 - another's
                    await asyncio.sleep(0.02)
            await ask(pair, "abc")
            await pair.events(closed=1)  # the caller may know it before the scheduler does
            pair.worker.open.set()
            assert (await first).json()["finishReason"] == "length"
    finally:
        pair.worker.open.set()
    closed = {event.finish_reason: event for event in (await pair.events(closed=2)).closed}
    assert closed[DEADLINE].input_tokens == closed[DEADLINE].billable_tokens == 0


async def test_a_deadline_in_the_middle_of_the_prompt_computes_no_more_of_it(pair, ask):
    pair.worker.pace_s = LATE_S * 0.6
    await ask(pair, PROMPT)
    row = await pair.row()
    assert (row.finish_reason, row.output_tokens) == (DEADLINE, 0)
    await idle(pair)
    computed = sum(sum(plan.token_count) for plan in pair.worker.plans)
    assert 0 < computed < row.input_tokens == row.billable_tokens


async def test_a_deadline_in_the_output_bills_what_was_produced_whatever_the_wall_clocks_say(
    pair, ask, skewed
):
    pair.worker.pace_s = 0.05
    begun = time.monotonic()
    await ask(pair, "abc")
    assert LATE_S - 0.1 < time.monotonic() - begun < LATE_S + 2
    row = await pair.row()
    assert row.finish_reason == DEADLINE
    assert 0 < row.output_tokens < 40
    assert row.billable_tokens == row.input_tokens + row.output_tokens
    await idle(pair)
