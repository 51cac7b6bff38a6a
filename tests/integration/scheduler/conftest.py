"""A scheduler per test on the module's NATS."""

from __future__ import annotations

import pytest

from kit.bus import Bus
from tests.integration.scheduler.support import House


@pytest.fixture
async def house(nats_url, tmp_path):
    house = House(nats_url, tmp_path)
    house.bus = await Bus.connect(nats_url, "test")
    await house.bus.ensure_stream("DEPLOYMENT", ["deployment.v1.>"], 3600)
    await house.bus.ensure_stream("USAGE", ["usage.v1.>"], 3600)
    await house.bus.js.purge_stream("DEPLOYMENT")
    await house.bus.js.purge_stream("USAGE")
    yield house
    for gateway in house.gateways:
        await gateway.close()
    await house.end()
    for worker in house.workers:
        await worker.die()
    await house.bus.close()


@pytest.fixture
async def serving(house):
    """A scheduler with one attached worker and one gateway."""
    house.start()
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    await house.gateway()
    return house
