"""The outbox against a real JetStream, through real crashes."""

import asyncio
import subprocess
import sys
import uuid

from kit.bus import Bus
from kit.outbox import Outbox


async def drained(path, bus):
    outbox, stop = Outbox(path), asyncio.Event()
    outbox.open()
    stop.set()
    await outbox.drain(bus, stop)
    assert outbox.pending == 0
    outbox.close()


async def stream_for(bus):
    name = f"t{uuid.uuid4().hex[:8]}"
    await bus.ensure_stream(name, [f"{name}.>"], max_age_s=3600)
    return name


async def test_a_crash_between_publish_and_cursor_is_stored_once(nats_url, tmp_path):
    bus = await Bus.connect(nats_url, "test")
    name = await stream_for(bus)
    outbox = Outbox(tmp_path / "outbox")
    outbox.open()
    for i in range(10):
        await outbox.append(f"{name}.a", f"id-{i}", b"%d" % i)
    outbox.close()
    await drained(tmp_path / "outbox", bus)
    (tmp_path / "outbox.cursor").unlink()
    await drained(tmp_path / "outbox", bus)
    state = (await bus.js.stream_info(name)).state
    assert (state.messages, state.last_seq) == (10, 10)
    await bus.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from kit.outbox import Outbox

async def main():
    outbox = Outbox(Path(sys.argv[1]))
    outbox.open()
    for i in range(1_000_000):
        await outbox.append(sys.argv[2] + ".a", f"id-{i}", b"x" * 100)
        print(i, flush=True)

asyncio.run(main())
"""


def killed_writer(path, name) -> int:
    """Kill a process that appends as fast as it can; returns how many appends it saw acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path, name], stdout=subprocess.PIPE, text=True
    ) as writer:
        while int(writer.stdout.readline()) < 200:
            pass
        writer.kill()
        return 201 + len(writer.stdout.readlines())


async def test_what_append_acknowledged_survives_a_kill(nats_url, tmp_path):
    bus = await Bus.connect(nats_url, "test")
    name = await stream_for(bus)
    acknowledged = killed_writer(tmp_path / "outbox", name)
    await drained(tmp_path / "outbox", bus)
    assert (await bus.js.stream_info(name)).state.messages >= acknowledged
    await bus.close()
