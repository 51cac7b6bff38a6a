"""API keys while NATS is away: believed for a while, then nobody is let in; streams that run go on."""

import asyncio
import time

import grpc
import pytest

from tests.integration.gateway.conftest import KEY, inference
from tests.integration.gateway.peers import LENGTH
from tokenloom.api.inference.v1 import inference_pb2 as pb

STALE_S = 0.8
GENERATE = {"model": "toy", "prompt": "x"}
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def nats_away(nats_server):
    """Take NATS away, and bring it back at the end: it is shared."""
    yield nats_server.kill
    nats_server.kill()
    nats_server.start()


async def refused_everywhere(platform):
    async with platform.http() as client:
        native = await client.post("/v1/generations", json=GENERATE)
        openai = await client.post("/v1/chat/completions", json=CHAT)
        health = await client.get("/health")
    assert (native.status_code, native.json()["error"]["reason"]) == (503, "NO_CAPACITY")
    assert int(native.headers["Retry-After"]) >= 1
    assert openai.status_code == health.status_code == 503
    assert "API keys" in health.json()["reason"]
    async with platform.grpc() as connection:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference(connection).ListModels(pb.ListModelsRequest(), metadata=platform.metadata(KEY))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def models_answer(client, status):
    """Return once whoever has a key is answered so; until then the key is believed, or nobody is."""
    async with asyncio.timeout(10):
        while (now := (await client.get("/v1/models")).status_code) != status:
            assert now in {200, 503}
            await asyncio.sleep(0.02)


async def test_keys_are_believed_for_the_limit_and_not_longer(launch, nats_server, nats_away):
    async with launch(keys_staleness_s=STALE_S) as platform:
        going_on = asyncio.Event()

        async def slow(job):
            job.accept()
            first, *rest = platform.ids("over")
            job.step((0, first))
            await going_on.wait()
            for token_id in rest:
                job.step((0, token_id))
            job.end(LENGTH)

        platform.scheduler.script = slow
        async with platform.http() as client:
            running = asyncio.create_task(client.post("/v1/generations", json=GENERATE))
            await platform.eventually(lambda: platform.scheduler.jobs)
            nats_away()
            lost = time.monotonic()
            await models_answer(client, 503)
            assert time.monotonic() - lost > STALE_S
            await refused_everywhere(platform)
            going_on.set()
            response = await running
        assert (response.status_code, response.json()["text"]) == (200, "over")
        nats_server.start()
        async with platform.http() as client:
            await models_answer(client, 200)
