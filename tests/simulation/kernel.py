"""The kernel: one clock, one queue of events, one source of chance, one trace."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import NoReturn

from tests.simulation.loop import SimulatedLoop, loop_of

Action = Callable[[], object]
KEPT_LINES = 6000
BEGINNING = 1_700_000_000.0


class Violation(Exception):  # noqa: N818 - says what happened
    """A promise of the platform did not hold."""


class PowerLoss(BaseException):
    """The disk stopped in the middle of a write: the process is gone."""


class World:
    """Everything that happens, in order. Time is seconds since the world began."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self.running: Process | None = None  # whose code runs now
        self.failure: Violation | None = None
        self.deaths: list[tuple[str, int, float]] = []  # name, life, when
        self._queue: list[tuple[float, int, Action, Callable[[], bool] | None]] = []
        self._scheduled = self._numbers = 0
        self._lines: deque[tuple[float, str, str, tuple[object, ...]]] = deque(maxlen=KEPT_LINES)
        self._digest = blake2b(digest_size=8)

    def after(self, delay_s: float, action: Action, void: Callable[[], bool] | None = None) -> None:
        """Do something later, unless it is `void` by then."""
        self._scheduled += 1
        heappush(self._queue, (self.now + max(0.0, delay_s), self._scheduled, action, void))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let things happen up to a time, or until `done` says so."""
        queue = self._queue
        while queue and queue[0][0] <= until and not done():
            self.now, _, action, void = heappop(queue)
            if void is not None and void():
                continue
            self.events += 1
            action()
            if self.failure is not None:
                raise self.failure
        if not queue or queue[0][0] > until:
            self.now = max(self.now, until)

    def note(self, who: str, what: str, *details: object) -> None:
        """Write a line of the trace; equal worlds have equal traces."""
        self._lines.append((self.now, who, what, details))
        self._digest.update(f"{self.now!r} {who} {what} {details}".encode())

    def fail(self, promise: str) -> NoReturn:
        """Say that a promise is broken; the world ends after this event, whoever catches the exception."""
        self.note("auditor", "BROKEN:", promise)
        if self.failure is None:
            self.failure = Violation(promise)
        raise self.failure

    def number(self) -> int:
        """A number that nothing else has: no two tasks hash alike."""
        self._numbers += 1
        return self._numbers

    def chance(self, probability: float) -> bool:
        """Toss a loaded coin."""
        return self.rng.random() < probability

    @property
    def digest(self) -> str:
        """Hash of the trace so far."""
        return self._digest.hexdigest()

    def trace(self, most: int) -> list[str]:
        """The last lines of the trace, for people."""
        lines = list(self._lines)[-most:]
        return [f"{at:10.4f}  {who:<10} {what} {' '.join(map(str, rest))}" for at, who, what, rest in lines]


class Process:
    """A process: it may crash and start again, stop for a while, and its clocks are its own."""

    def __init__(self, world: World, name: str) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.up = False
        self.life = 0  # rises with every start
        self.paused = False
        self.loop = loop_of(self)
        self._loops: list[SimulatedLoop] = []  # of earlier lives: what was left there never runs on
        self._pauses = 0
        self._held: deque[Action] = deque()
        self._offset = rng.uniform(10.0, 1e5)
        self._rate = 1.0 + rng.uniform(-2e-3, 2e-3)
        self._wall_skew = rng.uniform(-0.2, 0.2)

    def clock(self) -> float:
        """Monotonic seconds, as this process has them."""
        return self._offset + self.world.now * self._rate

    def wall(self) -> float:
        """Seconds since 1970, as this host has them."""
        return BEGINNING + self.world.now + self._wall_skew

    def after(self, delay_s: float, action: Action, void: Callable[[], bool] | None = None) -> None:
        """Do something later on this process's clock, if it lives on until then."""
        life = self.life
        self.world.after(delay_s / self._rate, lambda: self._run(life, action), void)

    def deliver(self, delay_s: float, action: Action) -> None:
        """Bring something from outside."""
        life = self.life
        self.world.after(delay_s, lambda: self._run(life, action))

    def _run(self, life: int, action: Action) -> None:
        if life != self.life or not self.up:
            return
        if self.paused:
            self._held.append(lambda: self._run(life, action))
            return
        self._inside(action)

    def _inside(self, action: Action) -> None:
        self.world.running = self
        loop = self.loop
        loop.enter()
        try:
            action()
            loop.drain()
            self.settled()
        except PowerLoss:
            self.crash()
        finally:
            loop.leave()
            self.world.running = None

    def failed(self, error: BaseException) -> None:
        """Say that this process's code raised what nobody expected."""
        if isinstance(error, PowerLoss):
            self.crash()
            return
        if self.world.failure is None:
            self.world.failure = Violation(f"{self.name} failed: {error!r}")
            self.world.failure.__cause__ = error

    def start(self) -> None:
        """Come up as a new process."""
        if self.up:
            return
        self.up, self.paused = True, False
        self.life += 1
        self._loops.append(self.loop)
        self.loop = loop_of(self)
        self.world.note(self.name, "starts", self.life)
        self._inside(self.on_start)

    def crash(self) -> None:
        """Be gone, with all that was in memory."""
        if not self.up:
            return
        self.world.note(self.name, "crashes")
        self.world.deaths.append((self.name, self.life, self.world.now))
        self.up = self.paused = False
        self._held.clear()
        self.loop._ready.clear()
        self.on_crash()

    def pause(self, for_s: float) -> None:
        """Stop for a while and know nothing of it."""
        if not self.up or self.paused:
            return
        self.world.note(self.name, "stops for", round(for_s, 3))
        self.paused = True
        self._pauses += 1
        life, pause = self.life, self._pauses
        self.world.after(for_s, lambda: self._resume(life, pause))

    def resume(self) -> None:
        """Go on."""
        self._resume(self.life, self._pauses)

    def _resume(self, life: int, pause: int) -> None:
        if life == self.life and self.paused and pause == self._pauses:
            self.world.note(self.name, "goes on")
            self.paused = False
            held, self._held = self._held, deque()
            for action in held:
                self.world.after(0.0, action)

    def settled(self) -> None:
        """What to look at after each event of this process."""

    def on_start(self) -> None:
        """What a start does."""

    def on_crash(self) -> None:
        """What the world does about a crash."""
