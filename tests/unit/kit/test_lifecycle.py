import asyncio
import signal
import subprocess
import sys
import time

import pytest

from kit import lifecycle

PRELUDE = """
import asyncio
from kit import lifecycle, log
log.configure("example")
"""


def process(body: str) -> subprocess.Popen[str]:
    script = f"{PRELUDE}\n{body}\nraise SystemExit(lifecycle.run(main, grace_s=0.3))"
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def started(child: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert child.stdout.readline() == "up\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(number):
    child = started(
        process("""
async def main(stop):
    lifecycle.settle_gc()
    print("up", flush=True)
    await stop.wait()
    print("drained", flush=True)
""")
    )
    child.send_signal(number)
    out, _ = child.communicate(timeout=10)
    assert (out, child.returncode) == ("drained\n", 0)


def test_a_drain_that_hangs_is_cut_off_with_an_exit_code():
    child = started(
        process("""
async def main(stop):
    lifecycle.settle_gc()
    print("up", flush=True)
    await asyncio.sleep(60)
""")
    )
    begun = time.monotonic()
    child.terminate()
    _, err = child.communicate(timeout=10)
    assert child.returncode == 1
    assert "drain timed out" in err
    assert time.monotonic() - begun < 5


def test_a_signal_during_start_up_ends_at_once_and_cleanly():
    child = started(
        process("""
async def main(stop):
    print("up", flush=True)
    await asyncio.sleep(60)
""")
    )
    child.terminate()
    child.communicate(timeout=10)
    assert child.returncode == 0


def test_a_background_task_that_dies_fails_the_process_loudly():
    child = process("""
async def broken():
    raise ValueError("pump broke")

async def main(stop):
    lifecycle.guard(asyncio.create_task(broken(), name="pump"))
    lifecycle.settle_gc()
    await stop.wait()
""")
    _, err = child.communicate(timeout=10)
    assert child.returncode == 1
    assert "background task pump died" in err


async def deaf_once(heard: list[float]) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append(time.monotonic())
            if len(heard) > 1:
                raise


async def test_a_task_that_loses_a_cancellation_is_ended_all_the_same():
    heard: list[float] = []
    deaf, done = asyncio.create_task(deaf_once(heard)), asyncio.create_task(asyncio.sleep(0))
    await done
    async with asyncio.timeout(5):
        await lifecycle.end(deaf, done, again_s=0.05)
    assert (len(heard), deaf.cancelled(), done.result()) == (2, True, None)


async def test_what_ends_a_task_and_is_ended_itself_ends_it_first():
    order: list[str] = []
    deaf = asyncio.create_task(deaf_once([]))
    await asyncio.sleep(0)

    async def outer() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            try:
                await lifecycle.end(deaf, again_s=0.05)
            finally:
                order.append(f"deaf done {deaf.done()}")

    ending = asyncio.create_task(outer())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await lifecycle.end(ending, again_s=0.02)
    assert (order, ending.cancelled()) == (["deaf done True"], True)


def test_a_start_up_that_loses_its_cancellation_ends_all_the_same():
    child = started(
        process("""
lifecycle._CUT_OFF_S = 0.05

async def main(stop):
    print("up", flush=True)
    for _ in range(2):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost = True
    raise asyncio.CancelledError
""")
    )
    child.terminate()
    child.communicate(timeout=10)
    assert child.returncode == 0
