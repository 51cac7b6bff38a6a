"""Who owns a generation when connections, gateways and schedulers come and go: two gateways, a scheduler."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.detokenize import decode
from services.gateway.core.outcome import FinishReason
from tests.integration.gateway.cluster import (
    ACME,
    PROMPT,
    RIVAL,
    TOKENIZER,
    Client,
    Gateway,
    Journal,
    PacedWorker,
)
from tests.integration.scheduler.support import MODEL, House, until

# A third of it, and a second that the machine stands still, are less than what a gateway makes of it.
LEASE_S = 2.5
SLOW_S = 0.04  # a step of what outlasts a lease
TOKENS = 30


def expected(count, start=0):
    """What the paced worker draws."""
    return [len(PROMPT) + 1 + number for number in range(start, count)]


def text_of(ids):
    return decode(TOKENIZER.vocabulary, ids)


class Cluster:
    """A scheduler with one worker, and gateways "a" and "b" that write to one journal each."""

    def __init__(self, house):
        self.house = house
        self.a, self.b = Gateway(house, "a", Journal()), Gateway(house, "b", Journal())

    def closings(self):
        """Epoch and terminal record of every `closed`, of both."""
        rows = [*self.a.journal.closed_rows, *self.b.journal.closed_rows]
        return sorted(((usage.owner_epoch, closed) for usage, closed in rows), key=lambda row: row[0])

    def opened(self):
        return [*self.a.journal.opened_rows, *self.b.journal.opened_rows]

    def pace(self, step_s):
        (worker,) = self.house.workers
        worker.pace_s = step_s

    def metric(self, name, **labels):
        return self.house.metrics.get_sample_value(f"tokenloom_scheduler_{name}", labels)

    async def closed_by_scheduler(self):
        info = await self.house.bus.js.stream_info("USAGE")
        return info.state.messages


@asynccontextmanager
async def house_of(nats_url, directory):
    async with House.opened(nats_url, directory) as house:
        house.start(lease_s=LEASE_S)
        worker = await PacedWorker(f"unix:{directory}/w1").start()
        house.workers.append(worker)
        await house.announce(worker)
        await house.until_lane(lambda lane: lane.workers == 1)
        yield house


@pytest.fixture
async def cluster(nats_url, tmp_path, eventually):
    async with house_of(nats_url, tmp_path) as house:
        cluster = Cluster(house)
        await eventually(lambda: cluster.a.lane.connected and cluster.b.lane.connected)
        yield cluster
        await cluster.a.vanish()
        await cluster.b.vanish()


async def test_a_lane_that_breaks_in_mid_stream_leaves_the_clients_stream_whole(cluster, eventually):
    client = Client(await cluster.a.start(max_output_tokens=TOKENS))
    await eventually(lambda: client.count() >= 5)
    cluster.a.cut()
    closed = await client.task
    assert client.reading.error is None
    assert client.ids[0] == expected(TOKENS)
    assert client.texts[0] == text_of(expected(TOKENS))
    assert cluster.closings() == [(2, closed)]
    assert (closed.finish_reason, closed.output_tokens) == (FinishReason.LENGTH, TOKENS)
    assert len(cluster.opened()) == 1


async def test_a_second_gateway_follows_from_any_token_and_says_the_same_done(cluster, eventually):
    first = Client(await cluster.a.start(max_output_tokens=TOKENS, logprobs=0))
    await eventually(lambda: first.count() >= 5)
    follower = await cluster.b.attach(first.reading, 3)
    assert follower.accepted == first.reading.accepted
    second, third = Client(follower, 3), Client(await cluster.a.attach(first.reading, 4), 4)
    done = await first.task
    assert await second.task == done
    assert await third.task == done
    assert second.ids[0] == expected(TOKENS, 3)
    assert third.ids[0] == expected(TOKENS, 4)
    assert len(cluster.closings()) == 1
    late = Client(await cluster.b.attach(first.reading, TOKENS - 1), TOKENS - 1)
    assert await late.task == done
    assert late.ids[0] == expected(TOKENS, TOKENS - 1)


async def test_a_follower_takes_over_from_a_gateway_that_vanishes_and_closes_once(cluster, eventually):
    cluster.pace(SLOW_S)
    first = Client(await cluster.a.start(max_output_tokens=100))
    await eventually(lambda: first.count() >= 5)
    second = Client(await cluster.b.attach(first.reading))
    await cluster.a.vanish()
    first.task.cancel()
    closed = await second.task
    assert second.reading.error is None
    assert second.ids[0] == expected(100)
    assert cluster.closings() == [(2, closed)]
    assert closed.output_tokens == 100
    assert cluster.b.journal.closed_rows[0][0].runtime_revision == "played"
    assert await cluster.closed_by_scheduler() == 0


async def test_what_has_a_resume_lease_waits_for_a_client_that_attaches_elsewhere(cluster, eventually):
    cluster.pace(SLOW_S)
    first = Client(await cluster.a.start(max_output_tokens=120, resume=True))
    await eventually(lambda: first.count() >= 5)
    seen = first.count()
    await cluster.a.vanish()
    first.task.cancel()
    await eventually(lambda: cluster.metric("ownerless_requests") == 1)
    second = Client(await cluster.b.attach(first.reading, seen), seen)
    closed = await second.task
    assert [*first.ids[0][:seen], *second.ids[0]] == expected(120)
    assert cluster.closings() == [(2, closed)]
    assert await cluster.closed_by_scheduler() == 0


async def test_without_one_it_ends_with_its_gateway(cluster, eventually):
    cluster.pace(2 * SLOW_S)
    first = Client(await cluster.a.start(max_output_tokens=120))
    await eventually(lambda: first.count() >= 5)
    await cluster.a.vanish()
    first.task.cancel()
    await until(cluster.closed_by_scheduler, bool)
    late = Client(await cluster.b.attach(first.reading))
    closed = await late.task
    assert closed.finish_reason is FinishReason.CANCELLED
    assert cluster.closings() == []
    assert await cluster.closed_by_scheduler() == 1


async def test_a_gateway_that_shuts_down_hands_over_what_can_be_resumed(cluster, eventually):
    first = Client(await cluster.a.start(max_output_tokens=60, resume=True))
    await eventually(lambda: first.count() >= 5)
    await cluster.a.generations.drain(0.05)
    await first.task
    assert (first.reading.error.code, first.reading.error.reason) == (Code.UNAVAILABLE, "DRAINING")
    await cluster.a.lane.flush(1)
    second = Client(await cluster.b.attach(first.reading, first.count()), first.count())
    closed = await second.task
    assert [*first.ids[0], *second.ids[0]] == expected(60)
    assert cluster.closings() == [(2, closed)]


async def test_a_frozen_gateway_that_comes_back_tells_what_the_new_owner_decides(cluster, eventually):
    cluster.pace(SLOW_S)
    first = Client(await cluster.a.start(max_output_tokens=100))
    await eventually(lambda: first.count() >= 5)
    second = Client(await cluster.b.attach(first.reading))
    cluster.a.freeze()
    await eventually(lambda: cluster.metric("handovers_total", model_version=MODEL))
    await cluster.a.thaw()
    closed = await second.task
    assert await first.task == closed
    assert first.ids[0] == second.ids[0] == expected(100)
    assert (first.reading.error, second.reading.error) == (None, None)
    assert [epoch for epoch, _ in cluster.closings()] == [2]


async def test_a_restarted_scheduler_goes_on_with_what_may_be_resumed(cluster, eventually):
    stop = text_of(expected(9, 6))
    first = Client(await cluster.a.start(max_output_tokens=40, resume=True, n=2))
    ended = Client(await cluster.a.start(max_output_tokens=40, resume=True, stop=(stop,)))
    plain = Client(await cluster.a.start(max_output_tokens=40))
    follower = Client(await cluster.b.attach(first.reading))
    await eventually(lambda: min(c.count() for c in (first, plain, follower)) >= 12)
    cluster.house.done.cancel()  # it dies: nobody is told of an end
    await asyncio.wait({cluster.house.done})
    cluster.house.start(lease_s=LEASE_S)
    done = await first.task
    assert first.ids == {0: expected(40), 1: expected(40)}
    assert (done.finish_reason, done.output_tokens) == (FinishReason.LENGTH, 80)
    assert await follower.task == done
    assert follower.ids == first.ids
    assert (await ended.task).finish_reason is FinishReason.STOP
    assert ended.texts[0] == text_of(expected(6))
    incomplete = await plain.task
    assert incomplete.finish_reason is FinishReason.INCOMPLETE
    assert incomplete.output_tokens == plain.count()


async def test_a_cancel_that_no_scheduler_can_hear_is_not_said_to_be_done(cluster, eventually):
    client = Client(await cluster.a.start(max_output_tokens=TOKENS))
    await eventually(lambda: client.count() >= 5)
    cluster.house.done.cancel()
    await asyncio.wait({cluster.house.done})
    await eventually(lambda: not cluster.a.lane.connected)
    with pytest.raises(ServiceError) as error:
        await cluster.a.generations.cancel(ACME, client.reading.accepted.request_id)
    assert (error.value.reason, error.value.retry_after_ms) == ("NO_CAPACITY", 1000)
    cluster.house.start(lease_s=LEASE_S)
    await client.task
    assert [closed.finish_reason for _, closed in cluster.closings()] == [FinishReason.CANCELLED]


async def test_another_tenant_finds_nothing(cluster):
    first = Client(await cluster.a.start(max_output_tokens=TOKENS))
    for gateway in (cluster.a, cluster.b):
        with pytest.raises(ServiceError) as caught:
            await gateway.attach(first.reading, tenant=RIVAL)
        assert caught.value.code is Code.NOT_FOUND
    await first.task
