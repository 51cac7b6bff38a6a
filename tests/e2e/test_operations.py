"""What an operator meets: a service that dies comes back, two gateways and two workers share the work."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.e2e.driver import Driver, Outcome

MODEL = "smollm2-135m-instruct"
LONG = {"model": MODEL, "prompt": "The sea", "temperature": 0, "maxOutputTokens": 1000, "ignoreEos": True}


async def generate_again(driver: Driver, timeout_s: float = 60) -> Outcome:
    """Retry refusals, as a caller would, until a generation succeeds."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            return await driver.stream(model=MODEL, prompt="Hello", maxOutputTokens=4, temperature=0)
        except (AssertionError, OSError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.25)


@pytest.mark.parametrize("service", ["worker", "scheduler"])
async def test_a_killed_service_ends_running_streams_as_incomplete_and_comes_back(stack, service):
    async with Driver(stack.http_url, stack.api_key) as driver:
        outcome = Outcome()
        stream = asyncio.create_task(driver.stream(outcome, **LONG))
        await outcome.reached(3)
        os.kill(stack.service(service)["pid"], signal.SIGKILL)
        await stream
        row = await driver.closed_row(outcome.request_id)
        again = await generate_again(driver)
    assert outcome.done["finishReason"] == row["finishReason"] == "incomplete"
    assert row["outputTokens"] == outcome.done["outputTokens"] == len(outcome.ids)
    assert again.done["finishReason"] == "length"
    assert len(again.ids) == 4


async def test_a_killed_usage_service_loses_no_row(stack):
    async with Driver(stack.http_url, stack.api_key) as driver:
        os.kill(stack.service("usage")["pid"], signal.SIGKILL)
        outcome = await driver.stream(model=MODEL, prompt="Hello", maxOutputTokens=4, temperature=0)
        until = time.monotonic() + 30
        while True:
            try:
                row = await driver.closed_row(outcome.request_id)
                break
            except AssertionError:
                assert time.monotonic() < until
    assert row["outputTokens"] == 4
