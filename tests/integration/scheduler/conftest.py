"""A scheduler per test on the module's NATS."""

from __future__ import annotations

import pytest

from tests.integration.scheduler.support import House


@pytest.fixture
async def house(nats_url, tmp_path):
    async with House.opened(nats_url, tmp_path) as house:
        yield house


@pytest.fixture
async def serving(house):
    """A scheduler with one attached worker and one gateway."""
    house.start()
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    await house.gateway()
    return house
