"""Processes as a bench sees them: started, ended, and what CPU they took."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process took, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextlib.contextmanager
def module(
    name: str, arguments: Sequence[str] = (), env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A module of this repository in a process of its own, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", name, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "GRPC_VERBOSITY": "NONE", **(env or {})},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
