"""The foreground command: signals, the `ready` line, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from tokenloom.up import files
from tokenloom.up.console import Console
from tokenloom.up.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tokenloom.up.options import Options


async def run(options: Options) -> None:
    """Run the platform until it is told to stop, then drain it; raises `UpError` when it cannot start."""
    console = Console(sys.stderr)
    with files.exclusive(options.data_dir):
        if not await until_signal(_serve(options, console)):
            console.event("stopped")


async def until_signal(work: Coroutine[object, object, None]) -> bool:
    """Run `work` to its end (True), or cancel it at the first SIGINT, SIGTERM or SIGHUP (False).

    Later signals are ignored: `work` is draining, which has limits of its own.
    """
    task = asyncio.ensure_future(work)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return False


async def _serve(options: Options, console: Console) -> None:
    async with Platform(options, console) as platform:
        first = platform.endpoints[0]
        sys.stdout.write(f"ready http={first.http_url} grpc={first.grpc_target} key={platform.api_key}\n")
        sys.stdout.flush()
        await platform.wait_failed()
