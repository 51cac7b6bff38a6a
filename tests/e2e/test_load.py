"""Many streams at once: everything finishes, every row is exact, every page comes back."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import grpc

from kit.metrics import CANCEL_BUCKETS
from tests.e2e.driver import Driver, Outcome
from tokenloom.api.scheduler.v1 import scheduler_pb2 as scheduler
from tokenloom.api.scheduler.v1 import scheduler_pb2_grpc as scheduler_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MODEL = "smollm2-135m-instruct"


async def inspect(stack) -> scheduler.LaneStatus:
    async with grpc.aio.insecure_channel(stack.service("scheduler")["target"]) as channel:
        response = await scheduler_grpc.SchedulerServiceStub(channel).Inspect(scheduler.InspectRequest())
    (lane,) = response.lanes
    assert list(lane.violations) == []
    return lane


async def wait_idle(stack, timeout_s: float = 5) -> scheduler.LaneStatus:
    until = time.monotonic() + timeout_s
    while (lane := await inspect(stack)).owned_pages:
        assert time.monotonic() < until, f"pages still owned: {lane}"
        await asyncio.sleep(0.05)
    return lane


async def settles(read: Callable[[], Awaitable[float]], value: float, timeout_s: float = 5) -> None:
    """Wait for a metric that is sampled once a second."""
    until = time.monotonic() + timeout_s
    while (seen := await read()) != value:
        assert time.monotonic() < until, f"{seen}, expected {value}"
        await asyncio.sleep(0.1)


async def metric(stack, service: str, name: str, label: str = "") -> float:
    async with (
        aiohttp.ClientSession() as session,
        session.get(stack.service(service)["metrics_url"]) as response,
    ):
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and label in line)


def prompt_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(length)]


async def test_32_mixed_streams_finish_with_exact_rows_and_no_page_left(stack):
    rng = random.Random(5)
    lengths = [1, 2, 1500] + [int(1500 ** rng.random()) for _ in range(29)]
    async with Driver(stack.http_url, stack.api_key) as driver:
        outcomes = await asyncio.gather(
            *(
                driver.stream(
                    model=MODEL,
                    promptTokenIds=prompt_ids(rng, length),
                    temperature=0.8,
                    maxOutputTokens=rng.randint(1, 64),
                    ignoreEos=rng.random() < 0.5,
                )
                for length in lengths
            )
        )
        rows = [await driver.closed_row(outcome.request_id) for outcome in outcomes]
    for length, outcome, row in zip(lengths, outcomes, rows, strict=True):
        assert outcome.done["finishReason"] == row["finishReason"] in {"stop", "length"}
        assert row["inputTokens"] == outcome.done["inputTokens"] == length
        assert row["outputTokens"] == outcome.done["outputTokens"] == len(outcome.ids)
    assert len({row["requestId"] for row in rows}) == 32
    lane = await wait_idle(stack)
    assert lane.waiting == lane.running == 0
    pages = partial(metric, stack, "scheduler", "tokenloom_scheduler_kv_pages")
    await settles(partial(pages, 'state="owned"'), 0)
    await settles(partial(pages, 'state="cached"'), lane.cached_pages)
    assert lane.cached_pages > 0


async def test_cancelling_16_of_32_frees_their_pages_and_leaves_the_rest_unchanged(stack):
    rng = random.Random(9)
    bodies = [
        {"model": MODEL, "promptTokenIds": prompt_ids(rng, 20 + index), "temperature": 0, "ignoreEos": True}
        for index in range(32)
    ]
    async with Driver(stack.http_url, stack.api_key) as driver:
        alone = [await driver.stream(maxOutputTokens=48, **body) for body in bodies[1:32:8]]
        outcomes = [Outcome() for _ in bodies]
        streams = [
            asyncio.create_task(driver.stream(outcome, maxOutputTokens=48 if index % 2 else 1000, **body))
            for index, (body, outcome) in enumerate(zip(bodies, outcomes, strict=True))
        ]
        doomed, others = outcomes[::2], outcomes[1::2]
        await asyncio.gather(*(outcome.reached(4) for outcome in doomed))
        statuses = await asyncio.gather(*(driver.cancel(outcome.request_id) for outcome in doomed))
        await asyncio.gather(*streams)
        rows = [await driver.closed_row(outcome.request_id) for outcome in outcomes]
    assert statuses == [200] * 16
    assert [outcome.done["finishReason"] for outcome in doomed] == ["cancelled"] * 16
    assert [outcome.done["finishReason"] for outcome in others] == ["length"] * 16
    assert [row["outputTokens"] for row in rows] == [len(outcome.ids) for outcome in outcomes]
    assert [outcome.ids for outcome in outcomes[1:32:8]] == [outcome.ids for outcome in alone]
    await wait_idle(stack)
    cancelled = await metric(stack, "scheduler", "tokenloom_scheduler_cancel_to_free_seconds_count")
    # Within the step under way and one more, however long this machine takes for them.
    steps = (after - before for outcome in others for before, after in itertools.pairwise(outcome.stamps))
    limit_s = max(0.25, 2 * max(steps))
    bound = next((bound for bound in CANCEL_BUCKETS if bound >= limit_s), CANCEL_BUCKETS[-1])
    in_time = await metric(
        stack, "scheduler", "tokenloom_scheduler_cancel_to_free_seconds_bucket", f'le="{bound}"'
    )
    assert cancelled >= 16
    assert in_time == cancelled
