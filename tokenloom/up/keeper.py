"""Keeps one service running: restarts it when it dies or hangs, says so, and drains it in the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from tokenloom.up.child import Child, Spec
from tokenloom.up.options import Policy, UpError
from tokenloom.up.probes import HangRule, Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenloom.up.console import Console

_STARTING_PROBE_S = 0.2
# A service exits with it when its configuration is wrong: another try cannot help.
CONFIG_EXIT = 2


class Keeper:
    """Owner of one service's process. `serving` is set once it serves, and stays set over restarts."""

    def __init__(self, spec: Spec, console: Console, policy: Policy, on_start: Callable[[], None]) -> None:
        self.spec = spec
        self.serving = asyncio.Event()
        self.child: Child | None = None
        self._console = console
        self._policy = policy
        self._on_start = on_start
        self._stopping = asyncio.Event()
        self._failures = 0

    async def run(self) -> None:
        """Run the service until `stop`; raises `UpError` when it cannot start at all."""
        while not self._stopping.is_set():
            started = time.monotonic()
            self.child = await Child.start(self.spec, self._console)
            self._on_start()
            if self._stopping.is_set():
                await self.stop()
                return
            try:
                verdict, code = await self._watch(self.child, started)
            finally:
                self.child.kill()
            if not self._stopping.is_set():
                await self._back_off(verdict, code, time.monotonic() - started)

    async def stop(self) -> None:
        """Drain the service, or kill it after the grace."""
        self._stopping.set()
        if self.child and not await self.child.stop(self._policy.grace_s):
            self._console.event(f"{self.spec.name} did not drain within {self._policy.grace_s:.0f} s: killed")

    async def _watch(self, child: Child, started: float) -> tuple[str, int]:
        exited = asyncio.create_task(child.wait())
        hung = asyncio.create_task(self._await_hang(started))
        try:
            await asyncio.wait({exited, hung}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                return _describe_exit(exited.result()), exited.result()
            if self._stopping.is_set():
                return "", await exited
            child.kill()
            await exited
            return hung.result(), 0
        finally:
            hung.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hung

    async def _await_hang(self, started: float) -> str:
        rule = HangRule(self._policy, started, must_serve=self.spec.must_serve)
        served = False
        while True:
            health = await self.spec.probe(self._policy.answer_s)
            now = time.monotonic()
            if health is Health.SERVING and not served:
                served = True
                self.serving.set()
                self._console.event(f"{self.spec.name} serves after {now - started:.1f} s")
            if (verdict := rule.observe(health, now)) and not self._stopping.is_set():
                return verdict
            await asyncio.sleep(self._policy.probe_s if served else _STARTING_PROBE_S)

    async def _back_off(self, verdict: str, code: int, lived_s: float) -> None:
        policy = self._policy
        self._failures = 1 if lived_s > policy.settled_s else self._failures + 1
        if not self.serving.is_set() and (code == CONFIG_EXIT or self._failures >= policy.start_attempts):
            raise UpError(f"{self.spec.name} cannot start: it {verdict}; its lines above say why")
        delay = min(policy.backoff_s * 2 ** (self._failures - 1), policy.backoff_max_s)
        self._console.event(f"{self.spec.name} {verdict}: restarting it in {delay:.1f} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)


def _describe_exit(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
