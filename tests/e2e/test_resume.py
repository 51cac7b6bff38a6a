"""Two gateways as processes: what a key and a resumable generation are worth when one of them is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.e2e.conftest import StackOptions
from tests.e2e.driver import Driver, Outcome
from tests.support.sse import events
from tokenloom.client import Client, Done, Tokens

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("stack", [StackOptions(gateways=2)], indirect=True)]
MODEL = "smollm2-135m-instruct"
BODY = {"model": MODEL, "prompt": "The sea", "temperature": 0, "ignoreEos": True}
STREAM = {"Accept": "text/event-stream"}


def drivers(stack) -> tuple[Driver, Driver]:
    first, second = (Driver(url, stack.api_key) for url in stack.http_urls)
    return first, second


async def post(driver, key, **body):
    headers = {"Idempotency-Key": key}
    async with driver.session.post(f"{driver.url}/v1/generations", json=BODY | body, headers=headers) as r:
        return r.status, await r.json()


async def follow(driver, name, outcome: Outcome) -> Outcome:
    """Go on where `outcome` ended: it checks that no index is repeated or missing."""
    start = ",".join(str(len(ids)) for _, ids in sorted(outcome.token_ids.items())) or "0"
    outcome.accepted = {}
    url = f"{driver.url}/v1/generations/{name}?from={start}"
    async with driver.session.get(url, headers=STREAM) as response:
        assert response.status == 200, await response.text()
        async for event, data in events(response):
            outcome.take(event, data)
    return outcome


async def killed_while(stack, outcome: Outcome, streaming: asyncio.Task, tokens: int) -> None:
    """Kill the second gateway once its client has so many tokens."""
    await asyncio.wait_for(outcome.reached(tokens), 60)
    pid = next(row["pid"] for row in stack.services("gateway") if row["name"] == "gateway-2")
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait({streaming})
    assert streaming.exception() is not None, "the stream should have broken"


async def back(stack) -> None:
    """Return once both gateways serve again."""
    async with asyncio.timeout(60):
        for url in stack.http_urls:
            async with Driver(url, stack.api_key) as driver:
                while True:
                    try:
                        async with driver.session.get(f"{url}/health") as response:
                            if response.status == 200:
                                break
                    except OSError:
                        pass
                    await asyncio.sleep(0.2)


async def test_racing_duplicates_over_both_gateways_make_one_generation_and_one_row(stack):
    first, second = drivers(stack)
    async with first, second:
        answers = await asyncio.gather(
            *(post((first, second)[i % 2], "race", maxOutputTokens=24) for i in range(8))
        )
        assert {status for status, _ in answers} == {200}
        assert len({answer["requestId"] for _, answer in answers}) == 1
        assert len({tuple(answer["tokenIds"]) for _, answer in answers}) == 1
        row = await first.closed_row(answers[0][1]["requestId"])
        assert row["outputTokens"] == len(answers[0][1]["tokenIds"]) == 24
        assert (await post(second, "race", maxOutputTokens=25))[0] == 409


@pytest.mark.parametrize("how", ["key", "resume"])
async def test_the_death_of_a_gateway_costs_its_clients_no_token_and_is_billed_once(stack, how):
    first, second = drivers(stack)
    async with first, second:
        body = BODY | {"maxOutputTokens": 200, "n": 2} | ({"resume": True} if how == "resume" else {})
        if how == "key":
            second.session.headers["Idempotency-Key"] = "killed"
        outcome = Outcome()
        streaming = asyncio.create_task(second.stream(outcome, **body))
        await killed_while(stack, outcome, streaming, tokens=5)
        request_id = outcome.request_id
        await follow(first, "key:killed" if how == "key" else request_id, outcome)
        assert outcome.request_id == request_id
        assert [len(ids) for ids in outcome.token_ids.values()] == [200, 200]
        whole = await follow(first, request_id, Outcome())
        assert (whole.token_ids, whole.texts) == (outcome.token_ids, outcome.texts)
        assert whole.done == outcome.done
        row = await first.closed_row(request_id)
        assert (row["outputTokens"], row["finishReason"]) == (400, "length")
    await back(stack)


async def test_the_sdk_survives_the_death_of_its_gateway(stack):
    seen, killed = [], False
    async with Client(stack.grpc_targets[1], stack.api_key, others=stack.grpc_targets[:1]) as client:
        generation = client.generate(
            MODEL, "The sea", temperature=0, ignore_eos=True, max_output_tokens=150, resume=True
        )
        async for event in generation:
            seen.append(event)
            if isinstance(event, Tokens) and not killed:
                killed = True
                pid = next(row["pid"] for row in stack.services("gateway") if row["name"] == "gateway-2")
                os.kill(pid, signal.SIGKILL)
        whole = await client.get(seen[0].request_id)
    assert isinstance(seen[-1], Done)
    ids = [t for event in seen if isinstance(event, Tokens) for t in event.token_ids]
    assert ids == list(whole.choices[0].token_ids)
    assert len(ids) == 150
    await back(stack)


async def test_keyed_requests_are_refused_while_nats_is_away_and_others_go_on(stack):
    first, second = drivers(stack)
    nats = stack.service("nats")["pid"]
    async with first, second:
        os.kill(nats, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            status, answer = await post(first, "away", maxOutputTokens=4)
            assert time.monotonic() - begun < 3
            assert (status, answer["error"]["reason"]) == (503, "IDEMPOTENCY_UNAVAILABLE")
            outcome = await second.stream(**BODY | {"maxOutputTokens": 4})
            assert len(outcome.ids) == 4
        finally:
            os.kill(nats, signal.SIGCONT)
        assert (await first.closed_row(outcome.request_id))["outputTokens"] == 4
        async with asyncio.timeout(30):
            while (await post(first, "away", maxOutputTokens=4))[0] == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        status, answer = await post(second, "away", maxOutputTokens=4)
        assert status == 200
        assert (await first.closed_row(answer["requestId"]))["outputTokens"] == 4


def told(stream: list[tuple[str, dict]], choice: int) -> tuple[list, str]:
    """(token id, log-probabilities) of a choice's tokens, and the text that came with them."""
    pieces = [data for name, data in stream if name == "token" and data["choice"] == choice]
    rows = [row for data in pieces for row in zip(data["tokenIds"], data["logprobs"], strict=True)]
    text = "".join(data["text"] for data in pieces)
    return rows, text


async def test_texts_and_log_probabilities_are_the_same_from_every_token_through_either_gateway(stack):
    first, second = drivers(stack)
    body = {"model": MODEL, "prompt": "List: \N{SNOWMAN}, \N{ROCKET}, caf\u00e9,", "seed": 7, "n": 2}
    body |= {"logprobs": 2, "maxOutputTokens": 24, "stop": ["zzz"]}
    async with first, second:
        async with first.session.post(f"{first.url}/v1/generations", json=body, headers=STREAM) as response:
            live = [event async for event in events(response)]
        request_id = live[0][1]["requestId"]
        for start in (0, 1, 7, 23, 24):
            joined = []
            for driver in (first, second):
                url = f"{driver.url}/v1/generations/{request_id}?from={start}"
                async with driver.session.get(url) as response:
                    joined.append([event async for event in events(response)])
            assert [told(joined[0], c) for c in (0, 1)] == [told(joined[1], c) for c in (0, 1)]
            for choice in (0, 1):
                rows, text = told(joined[0], choice)
                everything, whole = told(live, choice)
                assert rows == everything[start:]
                assert whole.endswith(text)
                assert text == whole if start == 0 else len(text) <= len(whole)
            assert joined[0][-1] == live[-1]
