"""What every test of the registry needs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.integration.registry.support import RegistryProcess, WorkerEvents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kit.bus import Bus


@pytest.fixture
def models(scratch: Path) -> Path:
    directory = scratch / uuid.uuid4().hex / "models"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
async def registry(models: Path, nats_url: str) -> AsyncIterator[RegistryProcess]:
    process = RegistryProcess(models.parent, nats_url, models)
    yield process
    await process.close()


@pytest.fixture
def names() -> tuple[str, str]:
    """Model names of this test alone: the module's tests share the NATS server."""
    unique = uuid.uuid4().hex[:8]
    return f"a-{unique}", f"b-{unique}"


@pytest.fixture
def worker() -> str:
    return f"w-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def events(bus: Bus, worker: str) -> AsyncIterator[WorkerEvents]:
    following = WorkerEvents(bus, worker)
    yield following
    await following.stop()
