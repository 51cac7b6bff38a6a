"""Runs hypothesis strategies in seeded batches, each of which one line repeats."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")
BATCH = 20
HANG_S = 30.0


@dataclass
class Tally:
    """Cases that ran, and how many of them reached the scheduler."""

    cases: int = 0
    past: int = 0


class Fuzzer:
    """Checks generated cases: `cases` of them at scale 1."""

    def __init__(self, name: str, tally: Tally, *, seed: int, scale: int) -> None:
        self.tally = tally
        self._name, self._seed, self._scale = name, seed, scale

    def __call__(self, strategy: SearchStrategy[T], check: Callable[[T], object], cases: int) -> None:
        """Run `check` on every case; one that raises is shrunk and reported with its replay."""
        batches = max(1, round(cases * self._scale / BATCH))
        for batch in range(self._seed, self._seed + batches):
            try:
                self._run(strategy, check, batch)
            except BaseException as error:
                # The whole folder is collected again: constants of every loaded module are tried as values.
                replay = f'make fuzz FUZZ_SEED={batch} FUZZ_SCALE=1 ARGS="tests/fuzz -k {self._name}"'
                error.add_note(f"replay: {replay}")
                raise

    async def on_loop(
        self, strategy: SearchStrategy[T], check: Callable[[T], Coroutine[Any, Any, object]], cases: int
    ) -> None:
        """The same for a check that runs on this event loop."""
        loop = asyncio.get_running_loop()

        def wait(case: T) -> None:
            asyncio.run_coroutine_threadsafe(check(case), loop).result(HANG_S)

        await asyncio.to_thread(self, strategy, wait, cases)

    def _run(self, strategy: SearchStrategy[T], check: Callable[[T], object], batch: int) -> None:
        @seed(batch)
        @settings(
            max_examples=BATCH,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def run(case: T) -> None:
            self.tally.cases += 1
            check(case)

        run()
