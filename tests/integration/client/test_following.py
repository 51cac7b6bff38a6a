"""The SDK takes a broken stream up again where that is safe, and nowhere else."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.integration.client.small_gateway import KEY, Running, collect
from tokenloom.client import Accepted, Client, Done, TokenloomError, Tokens
from tokenloom.retry import Backoff

QUICK = Backoff(attempts=4, first_s=0.01, longest_s=0.05)


@pytest.fixture
async def client(running):
    async with Client(running.target, KEY, backoff=QUICK) as client:
        yield client


def text(events) -> str:
    return "".join(event.text for event in events if isinstance(event, Tokens))


def check_whole(events):
    assert [type(event) for event in events] == [Accepted, Tokens, Tokens, Tokens, Done]
    assert [event.index for event in events[1:-1]] == [0, 1, 2]
    assert text(events) == "one two three"


async def test_key_and_resume_reach_the_server(client, running):
    await collect(client.generate("m", "x", idempotency_key="k", resume=True))
    await collect(client.generate("m", "x"))
    keyed, plain = running.gateway.requests
    assert (keyed.idempotency_key, keyed.resume) == ("k", True)
    assert (plain.idempotency_key, plain.resume) == ("", False)


@pytest.mark.parametrize("how", [{"idempotency_key": "k"}, {"resume": True}])
@pytest.mark.parametrize("breaks", [[0], [1], [2], [3], [1, 0, 1], [1, -1, -1]])
async def test_a_broken_stream_goes_on_without_a_token_repeated_or_missing(client, running, how, breaks):
    running.gateway.breaks = list(breaks)
    check_whole(await collect(client.generate("m", "x", **how)))
    assert len(running.gateway.requests) == 1
    assert {attach.request_id for attach in running.gateway.attaches} == {"gen-1"}


async def test_a_keyed_request_that_broke_before_it_was_accepted_is_sent_again(client, running):
    running.gateway.breaks = [-1, -1]
    check_whole(await collect(client.generate("m", "x", idempotency_key="k")))
    assert [request.idempotency_key for request in running.gateway.requests] == ["k"] * 3
    assert not running.gateway.attaches


@pytest.mark.parametrize("how", [{}, {"resume": True}])
async def test_a_request_without_a_key_that_may_run_already_is_never_sent_again(client, running, how):
    """The response was lost, the client tried again, and both ran and were billed: only a key allows that."""
    running.gateway.breaks = [-1]
    with pytest.raises(TokenloomError, match="DRAINING"):
        await collect(client.generate("m", "x", **how))
    assert len(running.gateway.requests) == 1
    assert not running.gateway.attaches


@pytest.mark.parametrize("broken", [-1, 2])
async def test_a_stream_that_ends_without_a_last_word_is_a_broken_one(client, running, broken):
    running.gateway.quiet, running.gateway.breaks = True, [broken]
    with pytest.raises(TokenloomError, match="STREAM_ENDED"):
        await collect(client.generate("m", "x"))
    assert len(running.gateway.requests) == 1
    running.gateway.breaks = [broken, 0, 0]
    check_whole(await collect(client.generate("m", "x", idempotency_key="k")))


async def test_a_plain_stream_that_breaks_is_an_error(client, running):
    running.gateway.breaks = [2]
    with pytest.raises(TokenloomError, match="DRAINING"):
        await collect(client.generate("m", "x"))
    assert not running.gateway.attaches


@pytest.mark.parametrize("prompt", ["bad", "busy"])
async def test_what_is_refused_for_another_reason_is_not_sent_again(client, running, prompt):
    with pytest.raises(TokenloomError):
        await collect(client.generate("m", prompt, idempotency_key="k"))
    assert len(running.gateway.requests) == 1


async def test_every_choice_goes_on_from_its_own_token(client, running):
    running.gateway.breaks = [3]
    async for event in client.generate("m", "x", n=2, resume=True):
        if isinstance(event, Tokens) and running.gateway.attaches:
            break
    assert list(running.gateway.attaches[0].from_index) == [2, 1]


async def test_last_words_that_were_heard_are_not_repeated(client, running):
    running.gateway.last_words = "!"
    running.gateway.breaks = [3]
    events = await collect(client.generate("m", "x", resume=True))
    assert text(events) == "one two three!"
    assert isinstance(events[-1], Done)


async def test_attach_follows_from_a_token_and_survives_a_break(client, running):
    running.gateway.breaks = [1]
    events = await collect(client.attach("gen-1", 1))
    assert text(events) == "two three"
    assert [list(attach.from_index) for attach in running.gateway.attaches] == [[1], [2]]
    assert text(await collect(client.attach("key:k"))) == "one two three"


async def test_attaching_to_nothing_is_an_error_at_once(client, running):
    with pytest.raises(TokenloomError, match="NOT_FOUND"):
        await collect(client.attach("gen-2"))
    assert len(running.gateway.attaches) == 1


async def test_another_gateway_takes_over_when_one_is_gone():
    async with (
        Running() as first,
        Running() as second,
        Client(first.target, KEY, others=[second.target], backoff=QUICK) as client,
    ):
        first.gateway.breaks = [1]
        check_whole(await collect(client.generate("m", "x", resume=True)))
        assert [list(attach.from_index) for attach in second.gateway.attaches] == [[1]]


async def test_unary_calls_turn_to_another_gateway(running):
    async with Client("127.0.0.1:1", KEY, others=[running.target], backoff=QUICK) as client:
        assert [model.name for model in await client.list_models()] == ["m"]


async def test_the_environment_names_further_gateways(running, monkeypatch):
    monkeypatch.setenv("TOKENLOOM_GRPC_TARGET", "127.0.0.1:1")
    monkeypatch.setenv("TOKENLOOM_GRPC_TARGET_2", running.target)
    monkeypatch.setenv("TOKENLOOM_API_KEY", KEY)
    async with Client.from_env() as client:
        assert len(await client.list_models()) == 1


async def test_a_gateway_that_stays_down_sees_few_tries_spread_over_time(client, running):
    running.gateway.breaks = [1, *([-1] * 100)]
    begun = time.monotonic()
    with pytest.raises(TokenloomError, match="DRAINING"):
        await collect(client.generate("m", "x", resume=True))
    assert len(running.gateway.attaches) == QUICK.attempts
    assert time.monotonic() - begun >= 0.005 + 0.01 + 0.02 + 0.025


async def test_many_streams_that_break_together_stay_within_one_budget(running):
    """No retry storm: what all streams of a client try again is bounded together."""
    never = Backoff(attempts=1000, first_s=0.0001, longest_s=0.001)
    async with Client(running.target, KEY, backoff=never) as client:
        running.gateway.breaks = [0] * 20 + [-1] * 10_000
        results = await asyncio.gather(
            *(collect(client.generate("m", "x", resume=True)) for _ in range(20)), return_exceptions=True
        )
    assert all(isinstance(result, TokenloomError) for result in results)
    assert len(running.gateway.attaches) <= 10 + 2 * 20
