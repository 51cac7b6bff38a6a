"""The SDK, and a gateway for it."""

from __future__ import annotations

import pytest

from tests.integration.client.small_gateway import KEY, Running
from tokenloom.client import Client


@pytest.fixture
async def running():
    async with Running() as running:
        yield running


@pytest.fixture
async def client(running):
    async with Client(running.target, KEY) as client:
        yield client
