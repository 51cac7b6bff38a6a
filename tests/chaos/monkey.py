"""What goes wrong: a shuffled deck of kills and pauses, dealt evenly over the run."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tests.chaos.stack import ROLES

if TYPE_CHECKING:
    from tests.chaos.clients import Crowd
    from tests.chaos.stack import Stack

# Per 10 minutes.
_KILLS = {"worker": 56} | {role: 11 for role in ROLES if role != "worker"}
_PAUSES = {"worker": 4, "gateway": 3, "scheduler": 3, "usage": 2, "registry": 1, "nats": 2}
_PAUSE_S = (1.0, 14.0)
_UNTIL_STREAMING_S = 3.0


@dataclass(frozen=True)
class Fault:
    """One thing that was done; `streaming` callers were being streamed to at that moment."""

    at: float
    role: str
    kind: str
    name: str
    seconds: float
    streaming: int


class Monkey:
    """Does to the stack what a seed says."""

    def __init__(self, stack: Stack, crowd: Crowd, seed: int) -> None:
        self.faults: list[Fault] = []
        self._stack, self._crowd = stack, crowd
        self._random = random.Random(seed)
        self._pauses: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        """Deal the deck over so many seconds, then undo what is left of it."""
        deck = [
            (kind, role)
            for kind, counts in (("kill", _KILLS), ("pause", _PAUSES))
            for role, count in counts.items()
            for _ in range(max(1, round(count * seconds / 600)))
        ]
        self._random.shuffle(deck)
        started = time.monotonic()
        for number, (kind, role) in enumerate(deck, 1):
            await (self._kill(role) if kind == "kill" else self._pause(role))
            await asyncio.sleep(max(0.0, started + number * seconds / len(deck) - time.monotonic()))
        if self._pauses:
            await asyncio.wait(self._pauses)

    def counts(self, kind: str) -> dict[str, int]:
        """How often each role was hit."""
        return {role: sum((f.role, f.kind) == (role, kind) for f in self.faults) for role in ROLES}

    @property
    def mid_stream(self) -> int:
        """Workers killed while callers were being streamed to."""
        return sum(f.role == "worker" and f.kind == "kill" and f.streaming > 0 for f in self.faults)

    def report(self) -> list[dict[str, Any]]:
        """Every fault, as JSON has it."""
        return [asdict(fault) for fault in self.faults]

    async def _kill(self, role: str) -> None:
        if role == "worker":
            await self._until_streaming()
        if role == "postgres":
            self._note(role, "kill", role)
            self._stack.signal(self._stack.postgres_pid(), signal.SIGKILL)
            await asyncio.sleep(self._random.uniform(0.5, 3.0))
            await self._stack.restart_postgres()
            return
        victim = self._random.choice(self._stack.services(role))
        if self._stack.signal(victim["pid"], signal.SIGKILL):
            self._note(role, "kill", victim["name"])

    async def _pause(self, role: str) -> None:
        victim = self._random.choice(self._stack.services(role))
        seconds = self._random.uniform(*_PAUSE_S)
        if self._stack.signal(victim["pid"], signal.SIGSTOP):
            self._note(role, "pause", victim["name"], seconds)
            task = asyncio.create_task(self._resume(victim["pid"], seconds))
            self._pauses.add(task)
            task.add_done_callback(self._pauses.discard)

    async def _resume(self, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stack.signal(pid, signal.SIGCONT)

    async def _until_streaming(self) -> None:
        until = time.monotonic() + _UNTIL_STREAMING_S
        while not self._crowd.streaming and time.monotonic() < until:  # noqa: ASYNC110 - callers come and go
            await asyncio.sleep(0.05)

    def _note(self, role: str, kind: str, name: str, seconds: float = 0.0) -> None:
        fault = Fault(time.time(), role, kind, name, round(seconds, 1), self._crowd.streaming)
        self.faults.append(fault)
