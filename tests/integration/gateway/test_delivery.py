"""Readers that leave, stall or lag, and the sequence that does not care."""

import asyncio
import contextlib
import gc
import json
import socket
import time
import tracemalloc
from functools import partial
from itertools import accumulate

import grpc
import httpx
import pytest

from kit.grpc import channel
from tests.integration.gateway.conftest import KEY, RIVAL_KEY, inference
from tests.integration.gateway.peers import CANCELLED, STOP
from tests.integration.gateway.test_native_http import sse
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.scheduler.v1 import scheduler_pb2


class RawClient:
    """An HTTP client that reads only when told to."""

    def __init__(self, url: str) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self.writer = None
        self.reader = None

    async def post(self, body: dict, *, accept="text/event-stream", version="1.1") -> None:
        # A small limit stops asyncio from reading ahead.
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, limit=1024)
        data = json.dumps(body).encode()
        self.writer.write(
            (
                f"POST /v1/generations HTTP/{version}\r\nHost: x\r\n"
                f"Authorization: Bearer {KEY}\r\nAccept: {accept}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            ).encode()
            + data
        )
        await self.writer.drain()

    def leave(self) -> None:
        self.writer.transport.abort()


@pytest.fixture
async def raw(platform):
    client = RawClient(platform.url)
    yield client
    if client.writer:
        client.leave()


def runs_until_cancelled(*tokens):
    async def script(job):
        job.accept()
        if tokens:
            job.step(*tokens)
        await job.until_cancelled()

    return script


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_client_that_vanishes_is_cancelled_at_once_and_billed_once(platform, raw, accept):
    platform.scheduler.script = runs_until_cancelled(5, 6, 7)
    await raw.post({"model": "toy", "prompt": "abc"}, accept=accept)
    await platform.eventually(lambda: platform.scheduler.jobs)
    await platform.told(platform.scheduler.job, "token")
    left = time.monotonic()
    raw.leave()
    await platform.eventually(lambda: platform.scheduler.job.cancels)
    row = (await platform.events()).row()
    took = time.monotonic() - left
    assert (row.finish_reason, row.output_tokens) == (CANCELLED, 3)
    assert len(platform.scheduler.job.cancels) == 1
    labels = {"model_version": platform.model_version}
    assert platform.metric("tokenloom_gateway_streams_open", **labels) == 0
    freed = partial(platform.metric, tenant="acme", **labels)
    assert freed("tokenloom_gateway_cancel_to_free_seconds_count") == 1
    assert 0 < freed("tokenloom_gateway_cancel_to_free_seconds_sum") <= took


async def test_a_client_that_vanishes_in_the_queue_pays_nothing(platform, raw):
    async def script(job):
        job.accept()
        await job.cancelled.wait()
        job.end_choice(CANCELLED)
        job.end_request(input_tokens=0)

    platform.scheduler.script = script
    await raw.post({"model": "toy", "prompt": "abc"})
    await platform.eventually(lambda: platform.scheduler.jobs)
    await asyncio.sleep(0.05)
    raw.leave()
    row = (await platform.events()).row()
    assert (row.finish_reason, row.billable_tokens) == (CANCELLED, 0)


async def test_a_client_that_vanishes_before_acceptance_leaves_one_cancelled_row(platform, raw):
    async def script(job):
        await job.cancelled.wait()
        job.accept()
        job.end_choice(CANCELLED)
        job.end_request(input_tokens=0)

    platform.scheduler.script = script
    await raw.post({"model": "toy", "prompt": "abc"})
    await platform.eventually(lambda: platform.scheduler.jobs)
    raw.leave()
    row = (await platform.events()).row()
    assert (row.finish_reason, row.billable_tokens) == (CANCELLED, 0)


async def test_delete_ends_the_callers_own_request_and_nobody_elses(platform, raw):
    platform.scheduler.script = runs_until_cancelled(5)
    await raw.post({"model": "toy", "prompt": "abc"})
    await platform.eventually(lambda: platform.scheduler.jobs)
    name = f"gen-{platform.scheduler.job.id:016x}"
    await raw.reader.readuntil(b"event: token\n")
    async with platform.http(RIVAL_KEY) as rival:
        assert (await rival.delete(f"/v1/generations/{name}")).status_code == 404
    assert not platform.scheduler.job.cancels
    async with platform.http() as own:
        response = await own.delete(f"/v1/generations/{name}")
    assert response.json() == {"requestId": name, "state": "running"}
    # Whoever owns it by then: who was answered was heard by the scheduler itself.
    assert platform.scheduler.remote_cancels[-1] == (platform.scheduler.job.id, "acme")
    await raw.reader.readuntil(b"event: done\n")
    assert json.loads((await raw.reader.readline()).removeprefix(b"data: "))["finishReason"] == "cancelled"
    row = (await platform.events()).row()
    assert (row.finish_reason, row.output_tokens) == (CANCELLED, 1)


async def test_a_cancel_that_the_scheduler_cannot_have_heard_is_not_said_to_be_taken(platform, raw):
    async def script(job):
        job.accept()
        job.step(5)

    platform.scheduler.script = script
    platform.scheduler.hears_cancels = False
    await raw.post({"model": "toy", "prompt": "abc"})
    await platform.eventually(lambda: platform.scheduler.jobs)
    async with platform.http() as own:
        response = await own.delete(f"/v1/generations/gen-{platform.scheduler.job.id:016x}")
    assert (response.status_code, response.json()["error"]["reason"]) == (503, "NO_CAPACITY")
    platform.scheduler.job.end(1)


async def test_delete_of_a_request_owned_elsewhere_goes_through_the_scheduler(platform):
    platform.scheduler.records[9, "acme"] = scheduler_pb2.GetGenerationResponse()
    async with platform.http() as own:
        assert (await own.delete("/v1/generations/gen-0000000000000009")).json()["state"] == "running"
    assert platform.scheduler.remote_cancels == [(9, "acme")]


async def test_text_coalesces_for_a_slow_reader_and_nothing_is_lost(platform):
    async def script(job):
        job.accept()
        for token in platform.ids("abcdefgh" * 8):
            job.step(token)
        job.end(STOP)

    platform.scheduler.script = script
    async with platform.grpc() as connection:
        call = inference(connection).Generate(
            pb.GenerateRequest(model="toy", prompt="x"), metadata=platform.metadata()
        )
        await platform.eventually(lambda: platform.scheduler.jobs and platform.scheduler.job.settled)
        tokens = [response.tokens async for response in call if response.HasField("tokens")]
    ids = platform.ids("abcdefgh" * 8)
    assert [token_id for token in tokens for token_id in token.token_ids] == ids
    assert "".join(token.text for token in tokens) == "abcdefgh" * 8
    assert [token.index for token in tokens] == [sum(t.count for t in tokens[:i]) for i in range(len(tokens))]


LONG = 4000


async def flood(job, tokens=LONG):
    """More than the sockets between gateway and reader can hold."""
    job.accept()
    for _ in range(tokens):
        if job.cancelled.is_set():
            break
        job.step(*[300] * 20, logprobs=True)
        await asyncio.sleep(0)
    await job.until_cancelled()


async def test_a_reader_that_reads_nothing_is_cancelled_and_slows_nobody(launch, tmp_path):
    async with launch(reader_timeout_s=0.5, stream_buffer_bytes=1 << 30) as platform:
        raw = RawClient(platform.url)
        platform.scheduler.script = flood
        await raw.post({"model": "toy", "prompt": "abc", "logprobs": 20})
        await platform.eventually(lambda: platform.scheduler.jobs)
        stalled = platform.scheduler.job
        platform.scheduler.script = platform.says("hello")
        async with platform.http() as client:
            response = await client.post("/v1/generations", json={"model": "toy", "prompt": "x"})
        assert response.json()["text"] == "hello"
        await platform.eventually(lambda: stalled.cancels, timeout_s=60)
        row = next(row for row in (await platform.events(2)).closed if row.opened.request_id == stalled.id)
        assert row.finish_reason == CANCELLED
        raw.leave()


async def test_a_reader_that_never_takes_the_end_of_a_finished_request_is_hung_up_on(launch):
    async with launch(reader_timeout_s=4, stream_buffer_bytes=1 << 30) as platform:
        raw = RawClient(platform.url)

        async def script(job):
            job.accept()
            for _ in range(LONG // 2):
                job.step(*[300] * 20, logprobs=True)
                await asyncio.sleep(0)
            job.end(STOP)

        platform.scheduler.script = script
        await raw.post({"model": "toy", "prompt": "abc", "logprobs": 20})
        await platform.eventually(lambda: platform.scheduler.jobs and platform.scheduler.job.settled, 60)
        assert (await platform.events()).row().finish_reason == STOP
        await asyncio.sleep(5.5)  # what it is given, and the time between two looks
        last = b""
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.wait_for(raw.reader.read(1 << 16), 5):
                last = (last + data)[-4096:]
        assert b"event: done" not in last
        raw.leave()


async def test_a_reader_that_pauses_until_the_sockets_are_full_misses_nothing(launch):
    async with launch(stream_buffer_bytes=1 << 30) as platform:
        resumes, flood_ids, slow_ids = asyncio.Event(), [300] * LONG * 15, platform.ids("abcdefgh" * 32)

        async def script(job):
            job.accept()
            for start in range(0, len(flood_ids), 20):
                job.step(*flood_ids[start : start + 20], logprobs=True)
                await asyncio.sleep(0)
            await resumes.wait()
            for token_id in slow_ids:
                job.step(token_id, logprobs=True)
                await asyncio.sleep(0.001)
            job.end(STOP)

        platform.scheduler.script = script
        body = {"model": "toy", "prompt": "abc", "logprobs": 2}
        headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {KEY}"}
        small = httpx.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)])
        async with (
            httpx.AsyncClient(base_url=platform.url, transport=small) as client,
            client.stream("POST", "/v1/generations", json=body, headers=headers) as response,
        ):
            await platform.told(platform.scheduler.job, "token", len(flood_ids) - 1)
            resumes.set()
            events = sse("".join([part async for part in response.aiter_text()]))
        tokens = [event for name, event in events if name == "token"]
        assert [token_id for token in tokens for token_id in token["tokenIds"]] == flood_ids + slow_ids
        assert [token["index"] for token in tokens] == [0, *accumulate(t["count"] for t in tokens[:-1])]
        assert max(token["count"] for token in tokens) > 1000  # what waited until they were empty


@pytest.mark.parametrize("version", ["1.0", "1.1", "2.0"])
async def test_events_come_in_chunks_where_the_version_has_them(platform, raw, version):
    platform.scheduler.script = platform.says("hello")
    await raw.post({"model": "toy", "prompt": "abc"}, version=version)
    head = (await raw.reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert ("transfer-encoding: chunked" in head) == (version != "1.0")
    body = b""
    if version == "1.0":
        body = await raw.reader.read()
    else:
        while size := int(await raw.reader.readline(), 16):
            body += await raw.reader.readexactly(size)
            assert await raw.reader.readline() == b"\r\n"
    events = sse(body.decode())
    assert "".join(event["text"] for name, event in events if name == "token") == "hello"
    assert events[-1][0] == "done"


async def test_a_reader_past_its_byte_cap_is_cancelled(launch):
    async with launch(stream_buffer_bytes=1 << 16) as platform:
        raw = RawClient(platform.url)
        platform.scheduler.script = flood
        await raw.post({"model": "toy", "prompt": "abc", "logprobs": 20})
        await platform.eventually(lambda: platform.scheduler.jobs and platform.scheduler.job.cancels, 60)
        assert (await platform.events()).row().finish_reason == CANCELLED
        raw.leave()


async def test_a_grpc_reader_that_reads_nothing_is_cancelled(launch):
    small_window = (("grpc.http2.bdp_probe", 0),)
    async with (
        launch(reader_timeout_s=0.5) as platform,
        channel(platform.target, options=small_window) as connection,
    ):
        platform.scheduler.script = flood
        call = inference(connection).Generate(
            pb.GenerateRequest(model="toy", prompt="x", logprobs=20), metadata=platform.metadata()
        )
        assert (await call.read()).HasField("accepted")
        await platform.eventually(lambda: platform.scheduler.job.cancels, 20)
        assert (await platform.events()).row().finish_reason == CANCELLED
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.CANCELLED


@pytest.mark.slow
async def test_a_reader_that_never_reads_much_costs_the_gateway_little_memory(launch):
    """Eight choices with logprobs: what was committed by the time it was turned away, and then nothing."""
    cap = 1 << 20
    async with launch(stream_buffer_bytes=cap) as platform:
        raw = RawClient(platform.url)

        async def script(job):
            job.accept()
            while not job.cancelled.is_set():
                job.step(*[(choice, 300) for choice in range(8)] * 5, logprobs=True)
                await asyncio.sleep(0.001)
            await job.until_cancelled()

        platform.scheduler.script = script
        tracemalloc.start()
        try:
            await raw.post({"model": "toy", "prompt": "abc", "n": 8, "logprobs": 2})
            await platform.eventually(lambda: platform.scheduler.jobs and platform.scheduler.job.cancels, 60)
            held = held_by_the_gateway()
            assert (await platform.events()).row().finish_reason == CANCELLED
            raw.leave()
            assert held < 16 * cap  # what the sockets took is kept too, for whoever follows
            await platform.eventually(lambda: held_by_the_gateway() < cap, 30)
        finally:
            tracemalloc.stop()


def held_by_the_gateway() -> int:
    """Bytes that its code has allocated and not let go."""
    gc.collect()
    own = tracemalloc.Filter(inclusive=True, filename_pattern="*/services/gateway/*")
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces([own]).traces)
