"""One child process: its own group, its output passed on line by line, gone when the supervisor is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenloom.up.console import Console
    from tokenloom.up.probes import Probe

_TETHER = str(Path(__file__).with_name("tether.py"))
_LINE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run, and how to see that it serves. `reads` picks the output lines worth passing on.

    `must_serve`: once it served, not serving is a fault of its own and never a peer's.
    """

    name: str
    service: str
    argv: tuple[str, ...]
    probe: Probe
    env: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    metrics_url: str = ""
    must_serve: bool = False
    reads: Callable[[str], bool] = bool


class Child:
    """A running child; made by `Child.start`."""

    def __init__(self, spec: Spec, process: asyncio.subprocess.Process, pump: asyncio.Task[None]) -> None:
        self.spec = spec
        self._process = process
        self._pump = pump

    @classmethod
    async def start(cls, spec: Spec, console: Console) -> Self:
        """Start the process in a group of its own: a terminal's Ctrl-C is the supervisor's alone."""
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-IS", _TETHER, str(os.getpid())),
                *spec.argv,
                env=spec.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        pump = asyncio.create_task(_pass_on(read_end, spec, console), name=f"output of {spec.name}")
        return cls(spec, process, pump)

    @property
    def pid(self) -> int:
        """The process id, which is also its group's."""
        return self._process.pid

    async def wait(self) -> int:
        """Return the exit code once the process is gone and its output read; its group is killed."""
        code = await self._process.wait()
        self._kill_group()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pump, 1.0)
        return code

    async def stop(self, grace_s: float) -> bool:
        """Ask it to drain; kill it after the grace. False when it had to be killed."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self.kill()
            await self.wait()
            return False
        await self.wait()
        return True

    def kill(self) -> None:
        """End the process and its group at once."""
        if self._process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


async def _pass_on(read_end: int, spec: Spec, console: Console) -> None:
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
    )
    try:
        while raw := await _line(reader):
            line = raw.decode(errors="replace").rstrip()
            if spec.reads(line):
                console.output(spec.name, line)
    finally:
        transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil()
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as overrun:
        return await reader.read(overrun.consumed)
