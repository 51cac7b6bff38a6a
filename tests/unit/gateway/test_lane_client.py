"""The lane client over a stream that the test holds in its hand."""

import asyncio
import contextlib

import grpc
import pytest

from services.gateway.adapters.lane import LaneClient
from services.gateway.core.outcome import FinishReason
from tokenloom.api.scheduler.v1 import scheduler_pb2


class Stream:
    """One call: what was written, and what is to be read."""

    def __init__(self, lease_us):
        self.written = []
        self.readable = asyncio.Queue()
        self.blocked = False
        self.lease_us = lease_us
        self.ended = False

    async def write(self, message):
        if self.blocked:
            await asyncio.Event().wait()
        self.written.append(message)
        if message.HasField("hello"):
            welcome = scheduler_pb2.Welcome(scheduler_epoch=1, lease_us=self.lease_us)
            self.readable.put_nowait(scheduler_pb2.LaneResponse(welcome=welcome))

    async def read(self):
        return await self.readable.get()

    def cancel(self):
        self.ended = True

    def kinds(self):
        return [message.WhichOneof("message") for message in self.written]


class Streams(list):
    """Every call that the client opened."""

    lease_us = 300_000

    def __call__(self):
        self.append(Stream(self.lease_us))
        return self[-1]


@pytest.fixture
async def streams():
    return Streams()


@pytest.fixture
async def lane(streams, eventually):
    client = LaneClient(streams, "g")
    task = asyncio.create_task(client.run())
    await eventually(lambda: client.connected)
    yield client
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_write_that_hangs_ends_the_stream_before_the_schedulers_lease(lane, streams, eventually):
    streams[0].blocked = True
    lane.cancel(7, FinishReason.CANCELLED)
    await eventually(lambda: not lane.connected, 0.3)
    assert streams[0].ended


async def test_what_must_be_said_is_said_on_the_next_stream(lane, streams, eventually):
    streams[0].blocked = True
    lane.cancel(7, FinishReason.CANCELLED)
    lane.settle(7, 1, FinishReason.CANCELLED, [3])
    await eventually(lambda: len(streams) > 1 and len(streams[1].written) >= 3)
    assert streams[1].kinds()[:3] == ["hello", "cancel", "settle"]


async def test_a_process_that_slept_past_its_lease_delivers_nothing_late(streams, eventually):
    now = [100.0]
    client = LaneClient(streams, "g", clock=lambda: now[0])
    task = asyncio.create_task(client.run())
    await eventually(lambda: client.connected)
    now[0] += 0.29
    streams[0].readable.put_nowait(scheduler_pb2.LaneResponse(step=scheduler_pb2.LaneStep()))
    await eventually(lambda: streams[0].ended, 1)
    task.cancel()
    await asyncio.wait({task})


class Owner:
    """A request that was being delivered."""

    request_id = 7

    def __init__(self):
        self.told = []

    def submission(self):
        return None

    def disowned(self):
        self.told.append("disowned")

    def lost(self):
        self.told.append("lost")
        return False


@pytest.mark.parametrize(("slept", "told"), [(0.2, ["lost"]), (0.29, ["disowned", "lost"])])
async def test_a_stream_that_ends_after_the_lease_takes_the_requests_along(
    streams, eventually, monkeypatch, slept, told
):
    submit = scheduler_pb2.Submit(request_id=7)
    monkeypatch.setattr("services.gateway.adapters.lane.encode_submission", lambda _: submit)
    now, owner = [100.0], Owner()
    client = LaneClient(streams, "g", clock=lambda: now[0])
    task = asyncio.create_task(client.run())
    await eventually(lambda: client.connected)
    client.submit(owner)
    await eventually(lambda: "submit" in streams[0].kinds())
    now[0] += slept
    streams[0].readable.put_nowait(grpc.aio.EOF)
    await eventually(lambda: owner.told, 1)
    assert owner.told == told
    task.cancel()
    await asyncio.wait({task})


async def test_an_acceptance_that_nobody_waits_for_is_cancelled_and_settled(lane, streams, eventually):
    accepted = scheduler_pb2.Accepted(request_id=9, owner_epoch=1)
    streams[0].readable.put_nowait(scheduler_pb2.LaneResponse(accepted=accepted))
    await eventually(lambda: len(streams[0].written) >= 3, 0.2)
    assert streams[0].kinds()[1:] == ["cancel", "settle"]
    assert await lane.flush(1)


async def test_a_first_message_that_is_no_welcome_is_no_lane(streams, monkeypatch, eventually):
    async def write(self, message):
        self.written.append(message)
        self.readable.put_nowait(scheduler_pb2.LaneResponse(step=scheduler_pb2.LaneStep()))

    monkeypatch.setattr(Stream, "write", write)
    client = LaneClient(streams, "g")
    task = asyncio.create_task(client.run())
    await eventually(lambda: len(streams) > 1)
    assert not client.connected
    task.cancel()
    await asyncio.wait({task})
