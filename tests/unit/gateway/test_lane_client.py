"""The lane client over a stream that the test holds in its hand."""

import asyncio
import contextlib
import itertools
import time

import grpc
import pytest

from services.gateway.adapters.lane import LaneClient
from services.gateway.core.effects import Ended, NoMeter
from tests.unit.gateway_core.lane_scene import order
from tests.unit.gateway_core.toy import toy
from tokenloom.api.scheduler.v1 import scheduler_pb2

LEASE_S = 0.3
PERIOD_S = LEASE_S / 3


class Clock:
    """Stands still until the test moves it, whatever the machine does meanwhile."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Stream:
    """One call: what was written, and what is to be read."""

    def __init__(self, streams):
        self.written = []
        self.readable = asyncio.Queue()
        self.blocked = False
        self.streams = streams
        self.ended = False
        self.opened_at = time.monotonic()

    async def write(self, message):
        if self.blocked:
            await asyncio.Event().wait()
        self.written.append(message)
        if message.HasField("hello"):
            welcome = scheduler_pb2.Welcome(scheduler_epoch=1, lease_us=self.streams.lease_us)
            self.say(welcome=welcome)
        if message.HasField("heartbeat") and self.streams.answers:
            self.say(heartbeat_ack=scheduler_pb2.HeartbeatAck(sequence=message.heartbeat.sequence))

    async def read(self):
        if isinstance(message := await self.readable.get(), BaseException):
            raise message
        return message

    def say(self, **message):
        self.readable.put_nowait(scheduler_pb2.LaneResponse(**message))

    def cancel(self):
        self.ended = True

    def kinds(self):
        return [m.WhichOneof("message") for m in self.written if not m.HasField("heartbeat")]

    def heard(self, beats):
        """Whether so many heartbeats are written, and what was said to them is read."""
        return len(self.written) - len(self.kinds()) == beats and self.readable.empty()


class Streams(list):
    """Every call that the client opened."""

    lease_us = int(LEASE_S * 1e6)
    answers = True

    def __call__(self):
        self.append(Stream(self))
        return self[-1]


@pytest.fixture
async def streams():
    return Streams()


@pytest.fixture
def clock():
    return Clock()


@contextlib.asynccontextmanager
async def running(client):
    task = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
async def lane(streams, clock, eventually):
    async with running(LaneClient(streams, "g", clock=clock)) as client:
        await eventually(lambda: client.connected)
        yield client


def submit(lane):
    return lane.submit(order(), toy().vocabulary, NoMeter())


async def test_a_write_that_hangs_ends_the_stream_before_the_schedulers_lease(
    lane, streams, clock, eventually
):
    await eventually(lambda: streams[0].heard(1))
    streams[0].blocked = True
    clock.now += PERIOD_S
    await asyncio.sleep(2 * PERIOD_S)
    assert streams[0].heard(1)
    clock.now += 0.9 * LEASE_S - PERIOD_S
    await eventually(lambda: not lane.connected)
    assert streams[0].ended


async def test_writes_that_nobody_answers_end_the_stream_before_the_schedulers_lease(
    lane, streams, clock, eventually
):
    await eventually(lambda: streams[0].heard(1))
    streams.answers = False
    for beats in (2, 3):
        clock.now += PERIOD_S
        await eventually(lambda beats=beats: streams[0].heard(beats))
    assert lane.connected
    clock.now += 0.9 * LEASE_S - 2 * PERIOD_S
    await eventually(lambda: streams[0].ended)


async def test_a_lane_that_is_answered_stands_past_its_first_lease(lane, streams, clock, eventually):
    await eventually(lambda: streams[0].heard(1))
    for beats in range(2, 8):
        clock.now += PERIOD_S
        await eventually(lambda beats=beats: streams[0].heard(beats))
    assert (lane.connected, len(streams)) == (True, 1)


UNREADABLE = {
    "columns that disagree": {"step": scheduler_pb2.LaneStep(request_id=[7], token_id=[1, 2])},
    "a row that is not there": {
        "step": scheduler_pb2.LaneStep(
            request_id=[7],
            choice=[0],
            index=[0],
            token_id=[1],
            logprobs={"row": [5], "logprob": [-1.0], "top_count": [0]},
        )
    },
}


@pytest.mark.parametrize("message", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_message_that_cannot_be_read_costs_the_stream_and_not_the_gateway(
    lane, streams, eventually, message
):
    streams[0].say(**message)
    await eventually(lambda: len(streams) == 2 and lane.connected)
    assert streams[0].ended


async def test_what_must_be_said_is_said_on_the_next_stream(lane, streams, clock, eventually):
    owner = submit(lane)
    await lane.flush(10)
    streams[0].blocked = True
    lane.tell(owner.cancel)
    clock.now += 0.9 * LEASE_S
    await eventually(lambda: len(streams) > 1 and len(streams[1].kinds()) >= 2)
    assert streams[1].kinds()[:2] == ["hello", "cancel"]


async def test_a_process_that_slept_past_its_lease_delivers_nothing_late(streams, clock, eventually):
    ended = []
    client = LaneClient(streams, "g", clock=clock)
    client.listen(lambda owner, effect: ended.append(effect) if isinstance(effect, Ended) else None)
    async with running(client):
        await eventually(lambda: client.connected)
        owner = submit(client)
        clock.now += 0.29
        accepted = scheduler_pb2.Accepted(request_id=7, owner_epoch=1)
        streams[0].say(accepted=accepted)
        await eventually(lambda: streams[0].ended)
        assert owner.owner_epoch == 0
        assert ended == []


async def test_a_stream_that_ends_is_followed_by_another_that_asks_for_all_again(lane, streams, eventually):
    submit(lane)
    await lane.flush(10)
    streams[0].readable.put_nowait(grpc.aio.EOF)
    await eventually(lambda: len(streams) > 1 and len(streams[1].kinds()) >= 2)
    assert streams[1].kinds() == ["hello", "submit"]


async def test_a_scheduler_that_welcomes_and_hangs_up_is_asked_ever_more_rarely(lane, streams, eventually):
    waits = [0.025 * 2**attempt for attempt in range(6)]  # at least
    for number in range(1, 1 + len(waits)):
        await eventually(lambda: lane.connected)
        streams[-1].readable.put_nowait(grpc.aio.EOF)
        await eventually(lambda number=number: len(streams) > number)
    for wait_s, (one, next_one) in zip(waits, itertools.pairwise(streams), strict=True):
        assert next_one.opened_at - one.opened_at >= wait_s


async def test_a_stream_that_ends_while_the_gateway_stops_holds_nobody_up(streams, eventually):
    async with asyncio.timeout(5), running(LaneClient(streams, "g")) as client:
        await eventually(lambda: client.connected)
        streams[0].readable.put_nowait(grpc.aio.EOF)


async def test_a_call_that_was_cancelled_is_followed_by_another(lane, streams, eventually):
    streams[0].readable.put_nowait(asyncio.CancelledError())
    await eventually(lambda: len(streams) == 2 and lane.connected)


async def test_a_stream_that_stood_a_while_is_followed_by_another_at_once(streams, clock, eventually):
    async with running(LaneClient(streams, "g", clock=clock)) as client:
        for count in range(1, 8):
            await eventually(lambda count=count: len(streams) == count and client.connected, 2)
            clock.now += 3
            streams[-1].readable.put_nowait(grpc.aio.EOF)


async def test_an_acceptance_that_nobody_waits_for_is_cancelled_and_settled(lane, streams, eventually):
    streams[0].say(accepted=scheduler_pb2.Accepted(request_id=9, owner_epoch=1))
    await eventually(lambda: len(streams[0].kinds()) >= 3)
    assert streams[0].kinds()[1:] == ["cancel", "settle"]
    assert await lane.flush(10)


async def test_what_was_written_is_flushed_only_once_it_was_heard(lane, streams, eventually):
    await eventually(lambda: streams[0].heard(1))
    streams.answers = False
    lane.tell(submit(lane).cancel)
    flushing = asyncio.create_task(lane.flush(60))
    await eventually(lambda: streams[0].heard(2))
    assert streams[0].kinds()[1:] == ["submit", "cancel"]
    await asyncio.sleep(0.05)
    assert not flushing.done()
    streams[0].say(heartbeat_ack=scheduler_pb2.HeartbeatAck(sequence=2))
    assert await flushing


async def test_a_flush_gives_up_on_a_scheduler_that_does_not_answer(lane, streams, eventually):
    await eventually(lambda: streams[0].heard(1))
    streams.answers = False
    assert not await lane.flush(0.05)


async def test_a_message_of_a_later_version_is_passed_over(lane, streams):
    streams[0].readable.put_nowait(scheduler_pb2.LaneResponse())
    await asyncio.sleep(0.02)
    assert lane.connected


async def test_a_first_message_that_is_no_welcome_is_no_lane(streams, monkeypatch, eventually):
    async def write(self, message):
        self.written.append(message)
        self.say(step=scheduler_pb2.LaneStep())

    monkeypatch.setattr(Stream, "write", write)
    async with running(LaneClient(streams, "g")) as client:
        await eventually(lambda: len(streams) > 1)
        assert not client.connected
