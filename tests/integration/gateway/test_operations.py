"""Usage, health, metrics, backpressure and drain."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

import grpc
import httpx
import pytest

from services.gateway.app import generations
from tests.integration.gateway.conftest import KEY, bearer, held_port, inference
from tests.integration.gateway.peers import ScriptedScheduler
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.usage.v1 import usage_pb2

COMMAND = [sys.executable, "-m", "services.gateway"]
GENERATE = {"model": "toy", "prompt": "x"}


async def test_usage_lists_the_callers_own_rows(platform):
    row = usage_pb2.UsageRow(
        request_id=9, tenant_id="acme", output_tokens=3, finish_reason=1, state=usage_pb2.ROW_STATE_CLOSED
    )
    row.opened_time.FromJsonString("2026-01-31T12:00:00Z")
    platform.ledger.rows = [row, usage_pb2.UsageRow(request_id=10, tenant_id="rival")]
    async with platform.http() as client:
        query = {"requestId": "gen-0000000000000009", "from": "2026-01-01T00:00:00Z", "to": "2026-02-01"}
        response = await client.get("/v1/usage", params=query)
    (found,) = response.json()["data"]
    assert found["requestId"] == "gen-0000000000000009"
    assert (found["outputTokens"], found["finishReason"], found["state"]) == (3, "stop", "closed")
    assert found["openedTime"] == "2026-01-31T12:00:00Z"
    assert found["closedTime"] is None
    (asked,) = platform.ledger.asked
    assert (asked.tenant_id, asked.request_id) == ("acme", 9)
    assert asked.start_time.ToJsonString() == "2026-01-01T00:00:00Z"


async def test_health_needs_a_stepping_lane_for_every_route(platform):
    async def health():
        await asyncio.sleep(0.55)
        async with platform.http(None) as client:
            response = await client.get("/health")
        return response.status_code, response.json().get("reason", "")

    assert await health() == (503, f"no worker serves {platform.model_version}")
    lane = scheduler_pb2.LaneStatus(
        model_version=platform.model_version, workers=1, running=1, last_step_age_us=12_000_000
    )
    platform.scheduler.lanes = [lane]
    status, reason = await health()
    assert status == 503
    assert "has not stepped for 12 s" in reason
    lane.last_step_age_us = 100
    assert await health() == (200, "")


async def test_metrics_count_what_happened_also_under_the_names_that_routers_read(platform):
    platform.scheduler.script = platform.says("hello")
    async with platform.http() as client:
        await client.post("/v1/generations", json=GENERATE)
        await client.post("/v1/generations", json={"model": "none", "prompt": "x"})
        text = (await client.get("/metrics")).text
    tokens = len(platform.ids("hello")) + 1
    labels = f'model_version="{platform.model_version}",tenant="acme"'
    assert f"tokenloom_gateway_output_tokens_total{{{labels}}} {tokens}.0" in text
    assert f"tokenloom_gateway_time_to_first_token_seconds_count{{{labels}}} 1.0" in text
    assert f"tokenloom_gateway_inter_token_latency_seconds_count{{{labels}}} {tokens - 1}.0" in text
    assert 'finish_reason="stop"' in text
    assert 'tokenloom_gateway_refusals_total{reason="NOT_FOUND"} 1.0' in text
    vllm = f'model_name="{platform.model_version}"'
    assert f'vllm:generation_tokens_total{{{vllm},tenant="acme"}} {tokens}.0' in text
    assert f"vllm:num_requests_running{{{vllm}}} 0.0" in text
    assert "tokenloom_gateway_outbox_age_seconds" in text


async def test_streaming_goes_on_while_nats_is_away_and_usage_arrives_once(platform, nats_server):
    platform.scheduler.script = platform.says("hello")
    nats_server.kill()
    try:
        async with platform.http() as client:
            for _ in range(3):
                response = await client.post("/v1/generations", json=GENERATE)
                assert response.json()["text"] == "hello"
    finally:
        nats_server.start()
    await platform.eventually(lambda: platform.bus.connected)
    events = await platform.events(3)
    assert len(events.opened) == len(events.closed) == 3
    assert len({event.request_id for event in events.opened}) == 3


async def test_a_long_request_is_renewed_until_it_closes(launch, monkeypatch):
    monkeypatch.setattr(generations, "_RENEW_S", 0.05)
    async with launch() as platform:

        async def script(job):
            job.accept()
            while (await platform.bus.js.stream_info("USAGE")).state.messages < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            job.step(2)
            job.end(1)

        platform.scheduler.script = script
        begun = time.monotonic()
        async with platform.http() as client:
            await client.post("/v1/generations", json=GENERATE)
        events = await platform.events()
        assert 2 <= len(events.renewed) <= 1 + (time.monotonic() - begun) / 0.05
        assert all(list(event.request_id) == [platform.scheduler.job.id] for event in events.renewed)


async def test_a_full_outbox_refuses_new_work_before_the_scheduler_hears_of_it(launch, nats_server):
    async with launch(outbox_max_bytes=1 << 16) as platform:
        platform.scheduler.script = platform.says("a")
        nats_server.kill()
        try:
            async with platform.http() as client:
                for _ in range(500):
                    response = await client.post("/v1/generations", json=GENERATE)
                    if response.status_code != 200:
                        break
        finally:
            nats_server.start()
        assert response.status_code == 503
        assert response.json()["error"]["reason"] == "USAGE_BACKPRESSURE"
        submitted = len(platform.scheduler.jobs)
        await platform.eventually(lambda: all(job.settled for job in platform.scheduler.jobs))
        assert len((await platform.events(submitted)).closed) == submitted


async def test_a_drain_refuses_new_work_and_lets_running_streams_finish(platform):
    halfway = asyncio.Event()

    async def script(job):
        job.accept()
        job.step(*platform.ids("he"))
        await halfway.wait()
        job.step(*platform.ids("llo"), 2)
        job.end(1)

    platform.scheduler.script = script
    async with platform.http() as client, platform.grpc() as connection:
        running = asyncio.create_task(client.post("/v1/generations", json=GENERATE))
        streaming = inference(connection).Generate(
            pb.GenerateRequest(**GENERATE), metadata=platform.metadata()
        )
        assert (await streaming.read()).HasField("accepted")
        await platform.eventually(lambda: len(platform.scheduler.jobs) == 2)
        platform.stop.set()
        await asyncio.sleep(0.05)
        refused = await client.post("/v1/generations", json=GENERATE)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "DRAINING")
        assert (await client.get("/health")).status_code == 503
        call = inference(connection).Generate(pb.GenerateRequest(**GENERATE), metadata=platform.metadata())
        with pytest.raises(Exception, match="shutting down"):
            await call.read()
        platform.scheduler.reads_after_s = 0.1
        halfway.set()
        assert (await running).json()["text"] == "hello"
        while (response := await streaming.read()) is not grpc.aio.EOF:
            last = response
        assert last.done.finish_reason == 1
        await platform.task
        assert all(job.settled for job in platform.scheduler.jobs), "it left before it was heard"
    assert [row.finish_reason for row in (await platform.events(2)).closed] == [1, 1]


async def test_a_drain_that_begins_while_a_request_is_looked_up_turns_its_follower_away(platform):
    class Slow(dict):
        def get(self, key):
            platform.stop.set()
            return super().get(key)

    platform.scheduler.script = platform.says("hello")
    async with platform.http() as client:
        await client.post("/v1/generations", json=GENERATE)
        record = scheduler_pb2.GetGenerationResponse(
            state=pb.GENERATION_STATE_RUNNING, model_version=platform.model_version, text_spec=b'{"stop": []}'
        )
        platform.scheduler.records = Slow({(9, "acme"): record})
        answer = await client.get("/v1/generations/gen-0000000000000009?from=0")
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "DRAINING")


async def test_what_outlives_the_grace_ends_as_it_stands(launch):
    async with launch(drain_grace_s=0.1) as platform:

        async def script(job):
            job.accept()
            job.step(5)
            await job.until_cancelled()

        platform.scheduler.script = script
        async with platform.http() as client:
            running = asyncio.create_task(client.post("/v1/generations", json=GENERATE))
            await platform.eventually(lambda: platform.scheduler.jobs)
            await platform.told(platform.scheduler.job, "token")
            platform.stop.set()
            assert (await running).json()["finishReason"] == "incomplete"
        await platform.task
        assert (await platform.events()).row().output_tokens == 1


@pytest.fixture
async def scheduler(platform):
    """One for another gateway: a scripted scheduler speaks to one at a time."""
    scheduler = ScriptedScheduler()
    scheduler.script = platform.says("hello")
    scheduler.lanes = [scheduler_pb2.LaneStatus(model_version=platform.model_version, workers=1)]
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


@pytest.fixture
def port():
    with held_port() as port:
        yield port


async def healthy(client):
    """Return once the gateway listens and is well."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(0.02)


async def test_the_process_serves_and_exits_0_on_sigterm(scheduler, port, nats_url, tmp_path):
    environment = os.environ | {
        "TOKENLOOM_NATS_URL": nats_url,
        "TOKENLOOM_STATE_DIR": str(tmp_path / "process"),
        "TOKENLOOM_SCHEDULER_TARGET": scheduler.target,
        "TOKENLOOM_USAGE_TARGET": "127.0.0.1:1",
        "TOKENLOOM_GATEWAY_ID": "gateway-9",
        "TOKENLOOM_HTTP_LISTEN": f"127.0.0.1:{port}",
    }
    process = await asyncio.create_subprocess_exec(
        *COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(KEY)) as client:
            await healthy(client)
            assert set(scheduler.hellos) == {"gateway-9"}
            response = await client.post("/v1/generations", json=GENERATE)
            assert response.json()["text"] == "hello"
            usage = await client.get("/v1/usage")
            assert (usage.status_code, usage.json()["error"]["reason"]) == (503, "USAGE_UNAVAILABLE")
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, err.decode()
    assert out == b""
    assert KEY not in err.decode()


def test_a_wrong_environment_is_refused_by_name_with_exit_2(tmp_path):
    environment = {"PATH": os.environ["PATH"], "TOKENLOOM_READER_TIMEOUT_S": "-1"}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    for name in ("TOKENLOOM_SCHEDULER_TARGET", "TOKENLOOM_READER_TIMEOUT_S", "TOKENLOOM_NATS_URL"):
        assert name in done.stderr
