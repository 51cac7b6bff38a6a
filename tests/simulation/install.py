"""Puts a world under production modules: clocks, chance, channels and failures that nobody handles."""

from __future__ import annotations

import logging
import random
import secrets
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

import structlog

import kit.bus
from kit import lifecycle
from services.scheduler.adapters import fleet, step_loop
from tests.simulation.kernel import BEGINNING, World
from tests.simulation.rpc import Call, Server, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

TICK_S = 0.2
ACK_WAIT_S = 2.0


@contextmanager
def installed(world: World, servers: dict[str, Server]) -> Iterator[None]:
    """Let production code live in this world; `servers` are reached by their names."""
    logging_before = structlog.get_config()
    structlog.configure(
        processors=[lambda _, __, event: _note(world, event)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    rng = world.rng
    real = time.monotonic

    def clock() -> float:
        return world.running.clock() if world.running is not None else real()

    def wall() -> float:
        return world.running.wall() if world.running is not None else BEGINNING + world.now

    def failed(reason: str) -> None:
        if world.running is not None:
            world.running.failed(RuntimeError(reason))

    @asynccontextmanager
    async def channel(target: str, **options: object) -> AsyncIterator[_Channel]:
        assert world.running is not None
        yield _Channel(world, servers[target])

    with ExitStack() as stack:
        stack.callback(structlog.configure, **logging_before)
        for owner, name, value in (
            (time, "monotonic", clock),
            (time, "time", wall),
            (time, "time_ns", lambda: int(wall() * 1e9)),
            (random, "uniform", rng.uniform),
            (random, "random", rng.random),
            (secrets, "randbelow", rng.randrange),
            (secrets, "randbits", rng.getrandbits),
            (secrets, "token_hex", lambda count: f"{rng.getrandbits(8 * count):0{2 * count}x}"),
            (lifecycle, "fail", failed),
            (fleet, "channel", channel),
            (fleet, "worker_pb2_grpc", SimpleNamespace(WorkerServiceStub=_WorkerStub)),
            (step_loop, "TICK_S", TICK_S),
            (step_loop, "gc", SimpleNamespace(disable=_nothing, enable=_nothing, collect=_nothing)),
            (kit.bus, "ACK_WAIT_S", ACK_WAIT_S),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


def _note(world: World, event: Any) -> NoReturn:
    """Write what services log into the trace; the line goes nowhere else."""
    event.pop("traceback", None)
    who = world.running.name if world.running is not None else "?"
    what = f"{event.pop('component', '')}: {event.pop('event', '')}"
    world.note(who, what, *(f"{name}={value}" for name, value in event.items()))
    raise structlog.DropEvent


class _Channel:
    """A connection from whoever runs now to a server."""

    def __init__(self, world: World, server: Server) -> None:
        assert world.running is not None
        self.client, self.server = world.running, server


class _WorkerStub:
    """The scheduler's view of a worker."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    async def Describe(self, request: object, *, timeout: float) -> Any:  # noqa: ASYNC109
        one = self._channel
        return await ask(one.server.network, one.client, one.server, "Describe", request, timeout)

    def Run(self, plans: AsyncIterator[object]) -> Call:
        one = self._channel
        call = Call(one.server.network, one.client, one.server, "Run", patient=False)
        call.send_all(plans)
        return call


class SchedulerStub:
    """A gateway's view of the scheduler."""

    def __init__(self, client: Any, server: Server) -> None:
        self._client, self._server = client, server

    def Lane(self, *, wait_for_ready: bool) -> Call:
        return Call(self._server.network, self._client, self._server, "Lane", patient=wait_for_ready)

    async def GetGeneration(self, request: object, *, timeout: float) -> Any:  # noqa: ASYNC109
        return await self._ask("GetGeneration", request, timeout)

    async def CancelGeneration(self, request: object, *, timeout: float) -> Any:  # noqa: ASYNC109
        return await self._ask("CancelGeneration", request, timeout)

    async def _ask(self, method: str, request: object, timeout: float) -> Any:  # noqa: ASYNC109
        return await ask(self._server.network, self._client, self._server, method, request, timeout)


class Nothing:
    """Metrics that measure nothing."""

    def __getattr__(self, name: str) -> Nothing:
        return self

    def __call__(self, *args: object, **options: object) -> Nothing:
        return self


def _nothing(*args: object) -> None:
    pass
