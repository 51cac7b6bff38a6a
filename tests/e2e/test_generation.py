"""One real model through every face: the same tokens, the same text, one ledger row each."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import openai
import pytest

from tests.e2e.driver import Driver
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.inference.v1 import inference_pb2_grpc as pb_grpc

CASES = json.loads((Path(__file__).parents[1] / "data" / "smollm2_greedy.json").read_text())["cases"]
CHAT = [case for case in CASES if case["kind"] == "chat"]
RAW = [case for case in CASES if case["kind"] == "completion"]


def body_of(case, **more):
    prompt = (
        {"messages": [{"role": "user", "content": case["text"]}]}
        if case["kind"] == "chat"
        else {"prompt": case["text"]}
    )
    return {"model": "smollm2-135m-instruct", "temperature": 0, "maxOutputTokens": 48, **prompt, **more}


@pytest.mark.parametrize("case", [CHAT[0], CHAT[5], RAW[0]], ids=lambda case: case["text"][:20])
async def test_native_stream_gives_the_reference_tokens_and_their_ledger_row(stack, case):
    async with Driver(stack.http_url, stack.api_key) as driver:
        outcome = await driver.stream(**body_of(case))
        row = await driver.closed_row(outcome.request_id)
    assert outcome.ids == case["greedy_token_ids"]
    assert outcome.text == case["greedy_text"]
    assert outcome.done["inputTokens"] == len(case["prompt_token_ids"]) == row["inputTokens"]
    assert outcome.done["outputTokens"] == len(outcome.ids) == row["outputTokens"]
    assert row["billableTokens"] == row["inputTokens"] + row["outputTokens"]
    assert (
        row["finishReason"] == outcome.done["finishReason"] == ("stop" if len(outcome.ids) < 48 else "length")
    )


async def test_grpc_stream_gives_the_reference_tokens(stack):
    case = CHAT[4]
    request = pb.GenerateRequest(
        model="smollm2-135m-instruct", max_output_tokens=48, temperature=0, logprobs=5
    )
    request.messages.messages.add(role="user", content=case["text"])
    async with grpc.aio.insecure_channel(stack.grpc_target) as channel:
        call = pb_grpc.InferenceServiceStub(channel).Generate(
            request, metadata=(("authorization", f"Bearer {stack.api_key}"),), timeout=60
        )
        events = [event async for event in call]
    assert [event.WhichOneof("event") for event in events[:1] + events[-1:]] == ["accepted", "done"]
    tokens = [event.tokens for event in events[1:-1]]
    assert [token for event in tokens for token in event.token_ids] == case["greedy_token_ids"]
    assert "".join(event.text for event in tokens) == case["greedy_text"]
    first = next(record for event in tokens for record in event.logprobs)
    for (token_id, logprob), seen in zip(case["first_step_top5"], first.top, strict=True):
        assert (seen.token_id, seen.logprob) == (token_id, pytest.approx(logprob, abs=2e-3))


async def test_stock_openai_client_streams_and_reads_usage(stack):
    case = CHAT[3]
    async with openai.AsyncOpenAI(base_url=f"{stack.http_url}/v1", api_key=stack.api_key) as client:
        names = [model.id async for model in await client.models.list()]
        stream = await client.chat.completions.create(
            model=names[0],
            messages=[{"role": "user", "content": case["text"]}],
            temperature=0,
            max_completion_tokens=48,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        whole = await client.completions.create(
            model=names[0], prompt=RAW[1]["text"], temperature=0, max_tokens=48
        )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == case["greedy_text"]
    assert chunks[-1].usage.prompt_tokens == len(case["prompt_token_ids"])
    assert chunks[-1].usage.completion_tokens == len(case["greedy_token_ids"])
    assert whole.choices[0].text == RAW[1]["greedy_text"]


async def test_choices_share_the_prompt_and_bill_it_once(stack):
    async with Driver(stack.http_url, stack.api_key) as driver:
        outcome = await driver.stream(
            **body_of(RAW[3], n=4, temperature=0.9, seed=7, maxOutputTokens=12, ignoreEos=True)
        )
        again = await driver.stream(
            **body_of(RAW[3], n=4, temperature=0.9, seed=7, maxOutputTokens=12, ignoreEos=True)
        )
        row = await driver.closed_row(outcome.request_id)
    assert sorted(outcome.token_ids) == [0, 1, 2, 3]
    assert outcome.token_ids == again.token_ids, "the same seed gives the same tokens"
    assert len({tuple(ids) for ids in outcome.token_ids.values()}) == 4, "choices differ"
    assert (row["inputTokens"], row["outputTokens"]) == (len(RAW[3]["prompt_token_ids"]), 48)


async def test_stop_string_is_cut_and_billed_up_to_its_last_token(stack):
    case = RAW[0]
    words = case["greedy_text"].split(" ")
    stop = " ".join(words[6:8])
    async with Driver(stack.http_url, stack.api_key) as driver:
        outcome = await driver.stream(**body_of(case, stop=[stop]))
        row = await driver.closed_row(outcome.request_id)
        kept = await (
            await driver.session.get(f"{stack.http_url}/v1/generations/{outcome.request_id}")
        ).json()
    assert outcome.text == case["greedy_text"][: case["greedy_text"].index(stop)]
    assert outcome.done["finishReason"] == "stop"
    assert outcome.ids == case["greedy_token_ids"][: len(outcome.ids)]
    assert row["outputTokens"] == outcome.done["outputTokens"] == len(outcome.ids) < 48
    assert kept["text"] == outcome.text, "Get recomputes the same text from the kept tokens"
    assert kept["tokenIds"] == outcome.ids


async def test_deadline_ends_decoding_and_bills_what_was_produced(stack):
    async with Driver(stack.http_url, stack.api_key) as driver:
        outcome = await driver.stream(
            **body_of(RAW[0], maxOutputTokens=2000, ignoreEos=True, deadlineMs=1500)
        )
        row = await driver.closed_row(outcome.request_id)
    assert outcome.done["finishReason"] == row["finishReason"] == "deadline"
    assert 0 < len(outcome.ids) < 2000
    assert row["outputTokens"] == outcome.done["outputTokens"] == len(outcome.ids)
    assert outcome.done["totalMs"] < 3000


async def test_client_that_vanishes_is_cancelled_and_billed_once(stack):
    async with Driver(stack.http_url, stack.api_key) as driver:
        async with driver.session.post(
            f"{stack.http_url}/v1/generations",
            json=body_of(RAW[0], maxOutputTokens=2000, ignoreEos=True),
            headers={"Accept": "text/event-stream"},
        ) as response:
            line = await anext(aiter(response.content))
            while not line.startswith(b"data:"):
                line = await anext(aiter(response.content))
            request_id = json.loads(line[5:])["requestId"]
            response.close()
        row = await driver.closed_row(request_id)
    assert row["finishReason"] == "cancelled"
    assert row["outputTokens"] < 2000
