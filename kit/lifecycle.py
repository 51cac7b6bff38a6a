"""A process's life: uvloop, signals, a drain that ends, and background tasks that never die in silence."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import uvloop

from kit import log

Main = Callable[[asyncio.Event], Awaitable[None]]
_CUT_OFF_S = 5.0
_log = log.get("lifecycle")


@dataclass
class _Process:
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False
    failed: bool = False


_current: ContextVar[_Process] = ContextVar("process")


def run(main: Main, *, grace_s: float = 30.0) -> int:
    """Run `main(stop)` until it returns; the result is the exit code.

    SIGTERM and SIGINT set `stop`; `main` then has `grace_s` to drain. A signal during start-up (before
    `settle_gc`) cancels it at once.
    """
    return uvloop.run(_supervise(main, grace_s))


def settle_gc() -> None:
    """Say that start-up is over: what lives now is left out of every later collection."""
    gc.collect()
    gc.freeze()
    if process := _current.get(None):
        process.started = True


def fail(reason: str) -> None:
    """Stop the process with a non-zero exit code, so that its supervisor restarts it."""
    _log.error("failed", reason=reason)
    if process := _current.get(None):
        process.failed = True
        process.stop.set()


def guard(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """Fail the process when this background task dies of an exception."""
    task.add_done_callback(_check)
    return task


async def end(*tasks: asyncio.Task[Any], again_s: float = 1.0) -> None:
    """Cancel the tasks and return once each has ended; a cancellation of the caller waits until then.

    After `again_s`, all that a task has to clean up, they are cancelled again: up to Python 3.11 one that
    comes together with what `asyncio.wait_for`, and so the NATS client, waits for is lost.
    """
    cancelled: asyncio.CancelledError | None = None
    while running := {task for task in tasks if not task.done()}:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running, timeout=again_s)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled


def _check(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("task died", task=task.get_name(), traceback=log.trace(error))
        fail(f"background task {task.get_name()} died")


async def _supervise(main: Main, grace_s: float) -> int:
    process = _Process()
    _current.set(process)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, process.stop.set)
    task = asyncio.ensure_future(main(process.stop))
    stopping = asyncio.ensure_future(process.stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    interrupted = not task.done() and not process.started
    if not interrupted:
        await asyncio.wait({task}, timeout=grace_s)
    overran = not task.done() and not interrupted
    await end(task, again_s=_CUT_OFF_S)
    try:
        await task
    except asyncio.CancelledError:
        if overran:
            _log.error("drain timed out", grace_s=grace_s)
    except Exception:  # whatever it was ends the process, and its log says why
        _log.exception("stopped by an error")
        return 1
    return int(process.failed or overran)
