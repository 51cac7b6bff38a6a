"""The SDK against a real gRPC server."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.client.small_gateway import KEY, collect
from tokenloom.client import Accepted, Client, Done, FinishReason, TokenloomError, Tokens


async def test_generate_yields_acceptance_tokens_and_the_end(client):
    events = await collect(client.generate("m", "hello"))
    assert [type(event) for event in events] == [Accepted, Tokens, Tokens, Tokens, Done]
    assert "".join(event.text for event in events[1:-1]) == "one two three"
    assert events[-1].finish_reason == FinishReason.FINISH_REASON_STOP


async def test_options_that_are_not_given_stay_unset_so_that_the_server_s_defaults_hold(client, running):
    await collect(client.generate("m", "hello"))
    await collect(client.generate("m", "hello", temperature=0.0, max_output_tokens=7, stop=["x"], logprobs=0))
    plain, given = running.gateway.requests
    assert not any(
        plain.HasField(name) for name in ("temperature", "max_output_tokens", "deadline_ms", "logprobs")
    )
    assert given.HasField("temperature")
    assert given.HasField("logprobs")
    assert (given.max_output_tokens, list(given.stop)) == (7, ["x"])


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [("text", "prompt"), ([1, 2], "prompt_token_ids"), ([{"role": "user", "content": "hi"}], "messages")],
)
async def test_a_prompt_is_text_token_ids_or_a_conversation(client, running, prompt, kind):
    await collect(client.generate("m", prompt))
    assert running.gateway.requests[0].WhichOneof("input") == kind


async def test_breaking_out_of_the_loop_cancels_the_generation(client, running):
    async for event in client.generate("m", "endless"):
        if isinstance(event, Tokens):
            break
    await asyncio.wait_for(running.gateway.cancelled.wait(), 5)


async def test_cancelling_the_task_cancels_the_generation(client, running, eventually):
    task = asyncio.create_task(collect(client.generate("m", "endless")))
    await eventually(lambda: running.gateway.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(running.gateway.cancelled.wait(), 5)


async def test_a_deadline_reaches_the_server_and_leaves_it_time_to_say_so(client, running):
    await collect(client.generate("m", "hello", deadline_s=2.5))
    await collect(client.generate("m", "hello"))
    assert running.gateway.requests[0].deadline_ms == 2500
    # gRPC rounds a deadline up when it writes it.
    assert 2.5 < running.gateway.time_left[0] < 8
    assert running.gateway.time_left[1] is None


async def test_a_refused_field_is_named(client):
    with pytest.raises(TokenloomError) as caught:
        await collect(client.generate("m", "bad"))
    error = caught.value
    assert (error.code, error.reason, error.field) == ("INVALID_ARGUMENT", "INVALID_REQUEST", "stop[0]")
    assert str(error) == "INVALID_REQUEST: must not be empty"
    assert error.retry_after is None


async def test_a_refusal_under_load_says_when_to_come_back(client):
    with pytest.raises(TokenloomError) as caught:
        await collect(client.generate("m", "busy"))
    assert (caught.value.reason, caught.value.retry_after) == ("QUEUE_FULL", 1.5)


async def test_a_wrong_key_is_an_error_on_every_call(running):
    async with Client(running.target, "wrong") as client:
        for call in (client.list_models(), client.cancel("gen-1"), collect(client.generate("m", "x"))):
            with pytest.raises(TokenloomError, match="INVALID_API_KEY"):
                await call


async def test_nobody_there_is_an_error_with_a_reason():
    async with Client("127.0.0.1:1", KEY) as client:
        with pytest.raises(TokenloomError) as caught:
            await client.list_models()
    assert caught.value.reason == "UNAVAILABLE"


async def test_models_counts_and_states_are_returned_as_they_are(client):
    assert [model.name for model in await client.list_models()] == ["m"]
    assert (await client.count_tokens("m", "three short words")).count == 3
    assert (await client.count_tokens("m", [{"role": "user", "content": "x"}])).count == 1
    assert (await client.get("gen-1")).request_id == "gen-1"


async def test_the_environment_tells_where_to_connect(running, monkeypatch):
    monkeypatch.setenv("TOKENLOOM_GRPC_TARGET", running.target)
    monkeypatch.setenv("TOKENLOOM_API_KEY", KEY)
    async with Client.from_env() as client:
        assert len(await client.list_models()) == 1
