"""A generation outlives its client and its gateway, and is followed from any token through either gateway."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from kit.grpc import service_error
from tests.integration.gateways.conftest import KEY, RIVAL_KEY, STREAM, sse
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.client import Accepted, Client, Done, Tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")
BODY = {"model": "toy", "prompt": "the quick", "maxOutputTokens": 12, "temperature": 0}


async def follow(one, request_id, start="0", **headers):
    async with one.http() as client:
        return await client.get(f"/v1/generations/{request_id}?from={start}", headers=headers)


async def begin(pair, one, tokens=1, **body):
    """Start a generation and leave it after some tokens; its id."""
    seen = 0
    async with (
        one.http() as client,
        client.stream("POST", "/v1/generations", json=BODY | body, headers=STREAM) as response,
    ):
        assert response.status_code == 200, await response.aread()
        request_id = response.headers["x-request-id"]
        async for line in response.aiter_lines():
            seen += line.startswith("event: token")
            if seen == tokens:
                return request_id
    raise AssertionError("it ended before")


def tokens(events, choice=0):
    return [t for name, e in events if name == "token" and e["choice"] == choice for t in e["tokenIds"]]


def text(events):
    return "".join(event["text"] for name, event in events if name == "token")


async def test_a_finished_generation_is_followed_from_every_token(pair):
    async with pair.first.http() as client:
        whole = (await client.post("/v1/generations", json=BODY)).json()
    for one in pair.gateways:
        for start in (0, 1, 5, 11, 12, 99):
            events = sse((await follow(one, whole["requestId"], start)).text)
            assert events[0][1]["requestId"] == whole["requestId"]
            assert tokens(events) == whole["tokenIds"][start:]
            assert whole["text"].endswith(text(events))
            assert events[-1] == ("done", {k: v for k, v in whole.items() if k in events[-1][1]})
    await pair.row()


async def test_a_resumable_generation_runs_on_without_its_client_and_is_taken_up_where_it_was(pair):
    pair.worker.pace_s = 0.02
    request_id = await begin(pair, pair.first, tokens=3, resume=True)
    rest = sse((await follow(pair.second, request_id, 3)).text)
    everything = sse((await follow(pair.first, request_id)).text)
    assert tokens(rest) == tokens(everything)[3:]
    assert next(event["index"] for name, event in rest if name == "token") == 3
    assert rest[-1][1]["finishReason"] == "length"
    assert (await pair.row()).output_tokens == 12


async def test_a_second_reader_only_follows_and_its_going_ends_nothing(pair):
    pair.worker.pace_s = 0.02
    async with (
        pair.first.http() as client,
        client.stream("POST", "/v1/generations", json=BODY, headers=STREAM) as response,
    ):
        request_id = response.headers["x-request-id"]
        for one in pair.gateways:
            async with (
                one.http() as other,
                other.stream("GET", f"/v1/generations/{request_id}?from=0") as second,
            ):
                assert second.headers["x-request-id"] == request_id
        events = sse((await response.aread()).decode())
    assert (len(tokens(events)), events[-1][1]["finishReason"]) == (12, "length")


async def test_without_a_key_or_resume_the_last_reader_that_leaves_ends_it(pair):
    pair.worker.pace_s = 0.02
    request_id = await begin(pair, pair.first, maxOutputTokens=200)
    events = sse((await follow(pair.second, request_id)).text)
    assert events[-1][1]["finishReason"] == "cancelled"
    await pair.row()


async def test_a_cancel_ends_it_at_once_whatever_it_was_asked_to_survive(pair):
    pair.worker.pace_s = 0.02
    request_id = await begin(pair, pair.first, maxOutputTokens=200, resume=True)
    async with pair.second.http() as client:
        assert (await client.delete(f"/v1/generations/{request_id}")).status_code == 200
    assert (await pair.row()).finish_reason == pb.FINISH_REASON_CANCELLED


async def test_each_choice_is_followed_from_its_own_token(pair):
    async with pair.first.http() as client:
        whole = (await client.post("/v1/generations", json=BODY | {"n": 2})).json()
    first, second = (choice["tokenIds"] for choice in whole["choices"])
    events = sse((await follow(pair.second, whole["requestId"], "3,10")).text)
    assert (tokens(events, 0), tokens(events, 1)) == (first[3:], second[10:])
    events = sse((await follow(pair.second, whole["requestId"], "4")).text)
    assert (tokens(events, 0), tokens(events, 1)) == (first[4:], second[4:])
    refused = await follow(pair.second, whole["requestId"], "1,2,3")
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "from")


async def test_a_browser_that_reconnects_goes_on_after_its_last_event(pair):
    pair.worker.pace_s = 0.01
    async with pair.first.http() as client:
        response = await client.post("/v1/generations", json=BODY | {"n": 2}, headers=STREAM)
    blocks = [block for block in response.text.split("\n\n") if "event: token" in block]
    marks = [block.split("\n")[0].removeprefix("id: ") for block in blocks]
    assert marks[-1] == "12,12"
    cut = len(blocks) // 2
    last = {"Last-Event-ID": marks[cut - 1]}
    rest = (await follow(pair.second, response.headers["x-request-id"], "0", **last)).text
    for choice in (0, 1):
        before, after = sse("\n\n".join(blocks[:cut])), sse(rest)
        assert tokens(before, choice) + tokens(after, choice) == tokens(sse(response.text), choice)


@pytest.mark.parametrize(
    ("path", "headers", "status", "field"),
    [
        ("?from=-1", {}, 400, "from"),
        ("?from=x", {}, 400, "from"),
        ("?from=", {}, 400, "from"),
        ("?from=0&to=3", {}, 400, "to"),
        ("?from=0", {"Last-Event-ID": "x"}, 400, "Last-Event-ID"),
        ("?from=0", {"Accept": "application/json"}, 406, ""),
    ],
)
async def test_what_cannot_be_followed_is_refused_by_name(pair, path, headers, status, field):
    async with pair.first.http() as client:
        request_id = (await client.post("/v1/generations", json=BODY)).json()["requestId"]
        answer = await client.get(f"/v1/generations/{request_id}{path}", headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"].get("field", "") == field


async def test_nobody_follows_what_is_unknown_or_anothers(pair):
    async with pair.first.http() as client:
        request_id = (await client.post("/v1/generations", json=BODY)).json()["requestId"]
    for one in pair.gateways:
        assert (await follow(one, "gen-0000000000000001")).status_code == 404
        async with one.http(RIVAL_KEY) as client:
            assert (await client.get(f"/v1/generations/{request_id}?from=0")).status_code == 404
        stub = await pair.stub(one)
        for name, key in ((request_id, RIVAL_KEY), ("gen-0000000000000001", KEY), ("key:k", KEY)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Attach(pb.AttachRequest(request_id=name), metadata=pair.metadata(key)).read()
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_grpc_attaches_from_a_token_of_every_choice(pair):
    stub, other = await pair.stub(pair.first), await pair.stub(pair.second)
    request = pb.GenerateRequest(model="toy", prompt="the quick", max_output_tokens=12, n=2)
    whole = [r async for r in stub.Generate(request, metadata=pair.metadata())]
    name = whole[0].accepted.request_id
    attach = pb.AttachRequest(request_id=name, from_index=[3, 10])
    rest = [r async for r in other.Attach(attach, metadata=pair.metadata())]
    assert rest[0].accepted == whole[0].accepted
    assert rest[-1].done == whole[-1].done
    for choice, start in ((0, 3), (1, 10)):
        ids, left = (
            [t for r in responses if r.tokens.choice == choice for t in r.tokens.token_ids]
            for responses in (whole, rest)
        )
        assert left == ids[start:]
    for bad in ([-1], [1, 2, 3]):
        bad_attach = pb.AttachRequest(request_id=name, from_index=bad)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await other.Attach(bad_attach, metadata=pair.metadata()).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert service_error(caught.value).field == "from_index"


async def test_a_gateway_that_leaves_hands_its_generations_over(pair):
    pair.worker.pace_s = 0.03
    body = BODY | {"maxOutputTokens": 60, "resume": True}
    seen = []
    async with (
        pair.first.http() as client,
        client.stream("POST", "/v1/generations", json=body, headers=STREAM) as response,
    ):
        request_id = response.headers["x-request-id"]
        leaving = None
        async for line in response.aiter_lines():
            seen.append(line)
            if line.startswith("event: token") and leaving is None:
                pair.worker.open.clear()  # nor does it end within the grace
                leaving = asyncio.create_task(pair.first.leave())
    await leaving
    pair.worker.open.set()
    pair.worker.pace_s = 0.0
    before = sse("\n".join(seen))
    assert before[-1][0] == "error"
    assert before[-1][1]["error"]["reason"] == "DRAINING"
    rest = sse((await follow(pair.second, request_id, len(tokens(before)))).text)
    everything = sse((await follow(pair.second, request_id)).text)
    assert tokens(before) + tokens(rest) == tokens(everything)
    assert (len(tokens(everything)), rest[-1][1]["finishReason"]) == (60, "length")
    assert (await pair.row()).output_tokens == 60


@pytest.mark.parametrize("how", [{"resume": True}, {"idempotency_key": "k"}])
async def test_the_sdk_goes_on_through_another_gateway_without_a_token_repeated_or_missing(pair, how):
    pair.worker.pace_s = 0.03
    events, leaving = [], None
    async with Client(pair.first.target, KEY, others=[pair.second.target]) as client:
        async for event in client.generate("toy", "the quick", max_output_tokens=24, ignore_eos=True, **how):
            events.append(event)
            if leaving is None and isinstance(event, Tokens):
                leaving = asyncio.create_task(pair.first.leave())
        whole = await client.get(events[0].request_id)
    await leaving
    assert [type(event) for event in events if not isinstance(event, Tokens)] == [Accepted, Done]
    ids = [t for event in events if isinstance(event, Tokens) for t in event.token_ids]
    assert ids == list(whole.choices[0].token_ids)
    assert len(ids) == 24
    said = "".join(event.text for event in events if isinstance(event, Tokens))
    assert said == whole.choices[0].text
    assert (await pair.row()).output_tokens == 24


async def test_a_worker_that_flaps_brings_no_storm_of_retries(pair):
    """What it loses is asked for again once a loss: by the scheduler, and by no caller and no gateway."""
    pair.worker.pace_s = 0.02
    before = pair.worker.runs
    async with Client(pair.first.target, KEY, others=[pair.second.target]) as client:

        async def whole(number):
            options = {"max_output_tokens": 60, "ignore_eos": True, "resume": True, "seed": number}
            return [event async for event in client.generate("toy", "the quick", **options)]

        streams = [asyncio.create_task(whole(number)) for number in range(6)]
        flaps = 3
        for flap in range(flaps):
            await asyncio.sleep(0.3)
            await pair.worker.die()
            pair.worker.incarnation = f"flap{flap}"
            pair.worker.last_epoch = 0
            await pair.worker.start()
            await pair.announce()
        for events in await asyncio.gather(*streams):
            ids = [t for event in events if isinstance(event, Tokens) for t in event.token_ids]
            assert len(ids) == 60
            assert [type(event) for event in events if not isinstance(event, Tokens)] == [Accepted, Done]
    assert pair.worker.runs - before <= 2 * flaps
    usage = await pair.events(closed=6)
    assert len(usage.opened) == len(usage.closed) == 6, "somebody asked twice"


async def test_what_outlasts_the_drain_of_a_scheduler_goes_on_with_the_next_one(pair, eventually):
    """What has no token or may resume is only delayed; the rest ends, billed by its owner."""
    pair.worker.pace_s = 0.05
    async with Client(pair.first.target, KEY) as client:

        async def whole(events, **options):
            async for event in client.generate("toy", "the quick", ignore_eos=True, **options):
                events.append(event)
            return events

        told = [], []
        streams = [
            asyncio.create_task(whole(events, max_output_tokens=60, resume=resume))
            for events, resume in zip(told, (True, False), strict=True)
        ]
        await eventually(lambda: all(len(events) > 1 for events in told))  # accepted, and tokens
        pair.worker.open.clear()
        async with asyncio.timeout(10):
            while not pair.worker.held:  # noqa: ASYNC110 - what was under way is answered first
                await asyncio.sleep(0.02)
        waiting = asyncio.create_task(whole([], max_output_tokens=4))
        async with asyncio.timeout(10):
            while not (await pair.lane()).waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await pair.stop_scheduler()
        pair.worker.open.set()
        pair.start_scheduler()
        await pair.announce()
        resumed, ended = await asyncio.gather(*streams)
        await waiting
    counts = [
        sum(len(event.token_ids) for event in events if isinstance(event, Tokens))
        for events in (resumed, ended, waiting.result())
    ]
    assert (counts[0], counts[2]) == (60, 4)
    assert 0 < counts[1] < 60
    assert ended[-1].finish_reason == pb.FINISH_REASON_INCOMPLETE
    rows = (await pair.events(closed=3)).closed
    assert sorted(row.output_tokens for row in rows) == sorted(counts)
