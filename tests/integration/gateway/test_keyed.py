"""Keys when something goes wrong between claiming one and telling a caller: two gateways, one real bucket."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from kit.errors import Code, ServiceError
from services.gateway.adapters.idempotency import BUCKET, KeyStore
from services.gateway.app.generations import Arrival
from services.gateway.app.keyed import Keyed
from services.gateway.core.idempotency import Patience, entry_name
from services.gateway.core.ids import Key
from services.gateway.core.outcome import FinishReason
from services.gateway.core.spec import GenerationSpec
from tests.integration.gateway.cluster import ACME, NAME, PROMPT, Client
from tests.integration.gateway.test_ownership import cluster

__all__ = ["cluster"]
KEY = Key("k")
NAME_OF_KEY = entry_name(ACME.tenant_id, KEY.text)
SPEC = GenerationSpec(
    model=NAME, prompt_token_ids=PROMPT, ignore_eos=True, temperature=0.0, max_output_tokens=20
)
UNAVAILABLE = ServiceError(Code.UNAVAILABLE, "IDEMPOTENCY_UNAVAILABLE", "NATS is away")


class Store:
    """The bucket; `before` and `after` may do anything around a write, given the entry written."""

    def __init__(self, bus) -> None:
        self._store = KeyStore(bus)
        self.before = self.after = self._nothing

    async def _nothing(self, entry):
        pass

    async def read(self, name):
        return await self._store.read(name)

    async def write(self, name, entry, revision):
        await self.before(entry)
        stored = await self._store.write(name, entry, revision)
        await self.after(entry)
        return stored


class Desk:
    """A gateway as its faces see it."""

    def __init__(self, gateway, bus) -> None:
        self.gateway, self.store = gateway, Store(bus)
        self._keyed = Keyed(gateway.generations, self.store, Patience(claim_s=1.0, resubmit_s=0.5))

    async def start(self, spec=SPEC):
        return await self._keyed.start(ACME, spec, Arrival(time.monotonic()), KEY)


@pytest.fixture
async def desks(cluster):
    bus = cluster.house.bus
    await bus.ensure_kv(BUCKET)
    await bus.js.purge_stream(f"KV_{BUCKET}")
    return Desk(cluster.a, bus), Desk(cluster.b, bus)


def rows(cluster):
    """(opened, closed) of both gateways; each request's closing stands for its row."""
    return cluster.opened(), [closed for _, closed in cluster.closings()]


async def entry(cluster):
    return (await KeyStore(cluster.house.bus).read(NAME_OF_KEY)).entry


def on_confirmation(action):
    async def before_or_after(entry):
        if entry is not None and entry.accepted:
            await action()

    return before_or_after


async def lose():
    raise replace(UNAVAILABLE)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_confirmation_that_is_lost_refuses_its_caller_bills_nothing_and_frees_the_key(
    cluster, desks, moment, eventually
):
    a, b = desks
    setattr(a.store, moment, on_confirmation(lose))
    with pytest.raises(ServiceError, match="IDEMPOTENCY_UNAVAILABLE"):
        await a.start()
    assert await entry(cluster) is None
    whole = Client(await b.start())
    assert (await whole.task).finish_reason is FinishReason.LENGTH
    await eventually(lambda: rows(cluster)[1])
    assert [closed.billable_tokens for closed in rows(cluster)[1]] == [len(PROMPT) + 20]


async def test_nobody_is_told_of_a_generation_before_its_owner_may_tell(cluster, desks):
    a, b = desks
    others = []

    async def ask_elsewhere_and_lose():
        a.store.after = a.store._nothing
        others.append(asyncio.create_task(b.start()))
        await asyncio.sleep(0.2)
        await lose()

    a.store.after = on_confirmation(ask_elsewhere_and_lose)
    with pytest.raises(ServiceError, match="IDEMPOTENCY_UNAVAILABLE"):
        await a.start()
    whole = Client(await others[0])
    assert (await whole.task).finish_reason is FinishReason.LENGTH
    ((usage, row),) = [*cluster.a.journal.closed_rows, *cluster.b.journal.closed_rows]
    assert (usage.request_id, row.billable_tokens) == (whole.reading.accepted.request_id, len(PROMPT) + 20)


async def test_a_key_lost_to_another_gateway_gives_the_generation_up_without_a_row(cluster, desks):
    a, b = desks
    theirs = []

    async def be_slower():
        a.store.before = a.store._nothing
        await asyncio.sleep(0)
        found = await a.store._store.read(NAME_OF_KEY)
        await a.store._store.write(NAME_OF_KEY, None, found.revision)
        theirs.append(await b.start())

    a.store.before = on_confirmation(be_slower)
    mine = await a.start()
    assert mine.accepted.request_id == theirs[0].accepted.request_id
    first, second = Client(mine), Client(theirs[0])
    assert await first.task == await second.task
    assert first.ids == second.ids
    opened, closings = rows(cluster)
    assert {usage.request_id for usage in opened} == {mine.accepted.request_id}
    assert len(closings) == 1


async def test_a_gateway_that_dies_before_it_confirms_leaves_the_key_to_who_asks_again(cluster, desks):
    a, b = desks

    async def die():
        await cluster.a.vanish()
        await asyncio.Event().wait()

    a.store.before = on_confirmation(die)
    dead = asyncio.create_task(a.start())
    while (claimed := await entry(cluster)) is None:  # noqa: ASYNC110 - a bucket
        await asyncio.sleep(0.01)
    client = Client(await b.start())
    assert client.reading.accepted.request_id != claimed.request_id  # of that one nobody was told
    assert (await client.task).finish_reason is FinishReason.LENGTH
    assert (await entry(cluster)).accepted
    assert len(rows(cluster)[1]) == 1
    dead.cancel()


async def test_opened_that_cannot_be_written_refuses_the_caller_and_frees_the_key(cluster, desks, eventually):
    a, b = desks
    full = ServiceError(Code.UNAVAILABLE, "USAGE_BACKPRESSURE", "the outbox is full")

    async def opened(record):
        raise full

    cluster.a.journal.opened = opened
    with pytest.raises(ServiceError, match="USAGE_BACKPRESSURE"):
        await a.start()
    assert await entry(cluster) is None
    assert (await Client(await b.start()).task).finish_reason is FinishReason.LENGTH
    await eventually(lambda: rows(cluster)[1])
    assert [closed.billable_tokens for closed in rows(cluster)[1]] == [len(PROMPT) + 20]


async def test_a_caller_that_leaves_in_mid_claim_leaves_no_key_half_claimed(cluster, desks, eventually):
    a, b = desks
    claiming, go_on = asyncio.Event(), asyncio.Event()

    async def hold(entry):
        a.store.after = a.store._nothing
        claiming.set()
        await go_on.wait()

    a.store.after = hold
    leaving = asyncio.create_task(a.start())
    await claiming.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go_on.set()
    reading = await asyncio.wait_for(b.start(), 5)
    assert (await Client(reading).task).finish_reason is FinishReason.LENGTH
    assert len(rows(cluster)[1]) == 1
