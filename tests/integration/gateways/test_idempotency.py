"""One key, one generation, one bill: over two gateways, both faces, and whatever is lost."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from kit.grpc import service_error
from kit.kv_store import KvStore
from services.gateway.adapters.idempotency import encode
from services.gateway.core.idempotency import Entry, content_digest, entry_name
from services.gateway.core.validation import parse_generation
from tests.integration.gateways.conftest import KEY, RIVAL_KEY, STREAM, sse
from tokenloom.api.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")
BODY = {"model": "toy", "prompt": "the quick", "maxOutputTokens": 8, "temperature": 0}


def keyed(key: str = "k", **headers: str) -> dict[str, str]:
    return {"Idempotency-Key": key, **headers}


async def post(one, key="k", *, tenant=KEY, stream=False, **body):
    async with one.http(tenant) as client:
        headers = keyed(key) | (STREAM if stream else {})
        return await client.post("/v1/generations", json=BODY | body, headers=headers)


async def store(pair) -> KvStore:
    return KvStore(pair.bus, "idempotency", timeout_s=1.0)


async def leave_entry(pair, *, accepted: bool, created: float, request_id: int = 77, key: str = "k"):
    entry = Entry(request_id, content_digest(parse_generation(BODY)), accepted, created)
    await (await store(pair)).write(entry_name("acme", key), encode(entry), revision=0)


async def test_a_response_that_is_lost_and_asked_for_again_neither_runs_nor_bills_twice(pair):
    pair.worker.pace_s = 0.01
    answers = await asyncio.gather(
        *(post(pair.gateways[i % 2], stream=i % 3 == 0, deadlineMs=20_000 + i) for i in range(12))
    )
    assert {answer.status_code for answer in answers} == {200}
    ids, tokens = set(), set()
    for answer in answers:
        if answer.headers["content-type"].startswith("text/event-stream"):
            events = sse(answer.text)
            ids.add(events[0][1]["requestId"])
            tokens.add(tuple(t for name, event in events if name == "token" for t in event["tokenIds"]))
        else:
            ids.add(answer.json()["requestId"])
            tokens.add(tuple(answer.json()["tokenIds"]))
    assert len(ids) == len(tokens) == 1
    row = await pair.row()
    assert row.output_tokens == 8


async def test_a_repeated_request_replays_the_result_through_either_gateway_and_face(pair):
    first = (await post(pair.first)).json()
    for one in pair.gateways:
        again = (await post(one)).json()
        assert again == first
        request = pb.GenerateRequest(
            model="toy", prompt="the quick", max_output_tokens=8, temperature=0, idempotency_key="k"
        )
        stub = await pair.stub(one)
        responses = [r async for r in stub.Generate(request, metadata=pair.metadata())]
        assert responses[0].accepted.request_id == first["requestId"]
        assert [t for r in responses for t in r.tokens.token_ids] == first["tokenIds"]
        assert responses[-1].done.output_tokens == first["outputTokens"]
    assert (await pair.row()).output_tokens == 8


async def test_the_openai_face_takes_keys_and_names_its_request(pair):
    body = {"model": "toy", "prompt": "the quick", "max_tokens": 8, "temperature": 0}
    async with pair.first.http() as client, pair.second.http() as other:
        first = await client.post("/v1/completions", json=body, headers=keyed())
        again = await other.post("/v1/completions", json=body | {"stream": True}, headers=keyed())
        conflict = await other.post("/v1/completions", json=body | {"seed": 1}, headers=keyed())
    assert first.headers["x-request-id"] == again.headers["x-request-id"] == first.json()["id"]
    assert conflict.status_code == 409
    assert conflict.json()["error"]["reason"] == "IDEMPOTENCY_CONFLICT"
    assert (await post(pair.first)).json()["requestId"] == first.json()["id"]
    await pair.row()


async def test_a_key_with_another_content_is_a_conflict_on_both_faces(pair):
    await post(pair.first)
    answer = await post(pair.second, prompt="the slow")
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["reason"]) == ("ALREADY_EXISTS", "IDEMPOTENCY_CONFLICT")
    stub = await pair.stub(pair.second)
    request = pb.GenerateRequest(model="toy", prompt="the slow", idempotency_key="k")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(request, metadata=pair.metadata()).read()
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert service_error(caught.value).reason == "IDEMPOTENCY_CONFLICT"
    await pair.row()


async def test_the_same_key_in_two_tenants_is_two_keys(pair):
    mine, theirs = await post(pair.first), await post(pair.first, tenant=RIVAL_KEY, prompt="another")
    assert mine.json()["requestId"] != theirs.json()["requestId"]
    assert len((await pair.events(closed=2)).closed) == 2
    async with pair.first.http(RIVAL_KEY) as client:
        found = await client.get("/v1/generations/key:k")
        assert found.json()["requestId"] == theirs.json()["requestId"]
        hidden = await client.get(f"/v1/generations/{mine.json()['requestId']}?from=0")
        assert hidden.status_code == 404


@pytest.mark.parametrize("key", ["", "a b", "caf\u00e9", "x" * 256])
async def test_a_malformed_key_is_refused_by_name(pair, key):
    async with pair.first.http() as client:
        headers = [(b"Idempotency-Key", key.encode("latin-1"))]
        answer = await client.post("/v1/generations", json=BODY, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["field"] == "Idempotency-Key"
        twice = [(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"b")]
        assert (await client.post("/v1/generations", json=BODY, headers=twice)).status_code == 400


async def test_a_generation_is_read_followed_and_cancelled_by_its_key(pair):
    pair.worker.pace_s = 0.02
    running = asyncio.create_task(post(pair.first, "a/b", maxOutputTokens=200, stream=True))
    async with pair.second.http() as client:
        while (found := await client.get("/v1/generations/key:a%2Fb")).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert found.json()["state"] in {"queued", "running"}
        cancelled = await client.delete("/v1/generations/key:a%2Fb")
        assert cancelled.json()["requestId"] == found.json()["requestId"]
        followed = sse((await client.get("/v1/generations/key:a%2Fb?from=0")).text)
    assert followed[-1][1]["finishReason"] == "cancelled"
    assert sse((await running).text)[-1][1] == followed[-1][1]
    assert (await client_get(pair, "key:nobody")).status_code == 404


async def client_get(pair, name):
    async with pair.first.http() as client:
        return await client.get(f"/v1/generations/{name}")


async def test_a_refused_request_leaves_its_key_free(pair):
    assert (await post(pair.first, prompt="x " * 2000)).status_code == 400
    assert (await post(pair.second)).status_code == 200


async def test_a_client_that_leaves_finds_its_generation_again_under_its_key(pair):
    pair.worker.pace_s = 0.02
    async with pair.first.http() as client:
        headers = keyed() | STREAM
        async with client.stream("POST", "/v1/generations", json=BODY, headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("event: token"):
                    break
    whole = (await post(pair.second)).json()
    assert (len(whole["tokenIds"]), whole["finishReason"]) == (8, "length")
    assert (await pair.row()).output_tokens == 8


async def test_a_claim_that_its_gateway_left_behind_is_taken_over(pair):
    await leave_entry(pair, accepted=False, created=time.time() - 60)
    assert (await post(pair.first)).status_code == 200
    await pair.row()


async def test_a_claim_on_its_way_is_waited_for(pair):
    await leave_entry(pair, accepted=False, created=time.time())
    waiting = asyncio.create_task(post(pair.first))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    entries = await store(pair)
    name = entry_name("acme", "k")
    await entries.write(name, None, revision=(await entries.read(name)).revision)
    assert (await waiting).status_code == 200


async def test_a_deadline_ends_the_wait_for_another_gateways_claim(pair):
    await leave_entry(pair, accepted=False, created=time.time())
    answer = await post(pair.first, deadlineMs=200)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (504, "DEADLINE_EXCEEDED")


async def test_keyed_requests_are_refused_in_time_while_nats_is_away_and_others_go_on(pair, nats_server):
    nats_server.kill()
    try:
        begun = time.monotonic()
        answer = await post(pair.first)
        assert time.monotonic() - begun < 4
        assert answer.status_code == 503
        assert answer.json()["error"]["reason"] == "IDEMPOTENCY_UNAVAILABLE"
        assert int(answer.headers["Retry-After"]) >= 1
        async with pair.first.http() as client:
            assert (await client.get("/v1/generations/key:k")).status_code == 503
            assert (await client.post("/v1/generations", json=BODY)).status_code == 200
    finally:
        nats_server.start()
    async with asyncio.timeout(20):
        while (await post(pair.first)).status_code == 503:  # noqa: ASYNC110 - the gateway reconnects
            await asyncio.sleep(0.1)
    assert (await post(pair.second)).status_code == 200
