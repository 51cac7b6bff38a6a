"""An event loop for one simulated process: production coroutines run on it, on the world's clock."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from tests.simulation.kernel import Process

Ts = TypeVarTuple("Ts")
DISK_S = (0.0005, 0.008)


class _Task(asyncio.Task[Any]):
    """A task with a number: sets of tasks have the same order in every run."""

    def __init__(
        self, number: int, coro: Coroutine[Any, Any, Any], loop: SimulatedLoop, **options: Any
    ) -> None:
        self.number = number
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """A future with a number, likewise."""

    def __init__(self, number: int, loop: SimulatedLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """What asyncio's own machinery needs of a loop; the world says when it runs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._life = process.life
        self._ready: deque[asyncio.Handle] = deque()

    def drain(self) -> None:
        """Run all that is ready, in order."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def enter(self) -> None:
        """Be the running loop."""
        events._set_running_loop(self)

    def leave(self) -> None:
        """Be the running loop no more."""
        events._set_running_loop(None)

    def time(self) -> float:
        return self._process.clock()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not timer._cancelled:
                self._ready.append(timer)

        self._process.after(when - self.time(), due, lambda: timer._cancelled)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over."""

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self._process.world.number(), self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        number = self._process.world.number()
        return _Task(number, coro, self, name=name or f"task {number}", context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` a moment later, as a thread would; the loop hears of it after one more moment."""
        future = self.create_future()
        rng = self._process.world.rng

        def work() -> None:
            try:
                result, error = func(*args), None
            except OSError as failure:
                result, error = None, failure
            self._process.after(rng.uniform(0.0001, 0.001), lambda: _resolve(future, result, error))

        self._process.after(rng.uniform(*DISK_S), work)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback failed: production code must not let that happen."""
        error = context.get("exception")
        if (
            self._process.life == self._life
            and self._process.up
            and "never retrieved" not in context["message"]
        ):
            self._process.failed(
                error if isinstance(error, BaseException) else RuntimeError(context["message"])
            )


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def loop_of(process: Process) -> SimulatedLoop:
    """A loop for one life of a process."""
    return SimulatedLoop(process)  # type: ignore[abstract] # sockets and processes are asked of it by nobody
