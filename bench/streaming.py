"""The control plane alone: real gateway and scheduler, a worker that costs nothing, over gRPC and HTTP/SSE.

Rates are events a second of a process's own CPU time, so that the client and a busy machine do not count.
A token's way is from the worker's result to the client that has read it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvloop

from bench import bare
from bench.callers import over_grpc, over_http
from bench.figures import Figure
from bench.hollow import age_s, control_plane
from bench.peers.client import percentile
from bench.processes import cpu_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.stand import Stand

    Face = Callable[[Stand, int, Callable[[list[int]], None]], Awaitable[None]]

STREAMS, OUTPUT = 128, 384
PACED_STREAMS, PACED_OUTPUT, PACED_STEP_MS = 32, 200, 25.0
# Tokens of each stream at either end that are not timed: others begin or end then.
UNSTEADY = 15
ADDED_P99_MS, EVENTS_S = 3.0, 12_000.0
_FACES: dict[str, Face] = {"gRPC": over_grpc, "HTTP": over_http}


@dataclass(slots=True)
class _Heard:
    tokens: int = 0
    events: int = 0
    ages: list[float] = field(default_factory=list)

    def count(self, token_ids: list[int]) -> None:
        self.tokens += len(token_ids)
        self.events += 1

    def time(self, token_ids: list[int]) -> None:
        self.count(token_ids)
        self.ages.extend(map(age_s, token_ids))


async def rates(stand: Stand, name: str) -> list[Figure]:
    """As fast as it goes; an event carries more than one token only if its client is behind."""
    heard, title = _Heard(), f"{name}, {STREAMS} streams, no pause"
    spent, seconds = await _run(stand, name, STREAMS, OUTPUT, heard.count)
    gateway, tokens = spent["gateway"], heard.tokens
    goal = EVENTS_S if name == "gRPC" else None
    return [
        Figure(f"{title}: events a second of gateway CPU", heard.events / gateway, "1/s", goal, more=True),
        Figure(f"{title}: tokens an event", tokens / heard.events, ""),
        Figure(f"{title}: scheduler CPU a token", spent["scheduler"] / tokens * 1e6, "us"),
        Figure(f"{title}: tokens a second, clients and all on this machine", tokens / seconds, "tok/s"),
    ]


async def added(stand: Stand, name: str) -> list[Figure]:
    """At a steady step: every process wakes for every one."""
    heard, title = _Heard(), f"{name}, {PACED_STREAMS} streams, {PACED_STEP_MS:.0f} ms steps"
    spent, _ = await _run(stand, name, PACED_STREAMS, PACED_OUTPUT, heard.time)
    p50, p99 = _steady(heard.ages)
    bare_p50, bare_p99 = _steady(await bare.ages_s(name, PACED_STREAMS, PACED_OUTPUT, PACED_STEP_MS / 1e3))
    tokens = heard.tokens
    return [
        Figure(f"{title}: events a second of gateway CPU", heard.events / spent["gateway"], "1/s"),
        Figure(f"{title}: tokens an event", tokens / heard.events, ""),
        Figure(f"{title}: scheduler CPU a token", spent["scheduler"] / tokens * 1e6, "us"),
        Figure(f"{title}: worker's result to client, p50", p50, "ms"),
        Figure(f"{title}: worker's result to client, p99", p99, "ms", ADDED_P99_MS),
        Figure(f"{title}: the same way with nothing of ours on it, p50", bare_p50, "ms"),
        Figure(f"{title}: the same way with nothing of ours on it, p99", bare_p99, "ms"),
    ]


def _steady(ages_s: list[float]) -> tuple[float, float]:
    """Median and 99th percentile in ms, of all but the ends."""
    steady = ages_s[UNSTEADY * PACED_STREAMS : -UNSTEADY * PACED_STREAMS]
    return 1e3 * percentile(steady, 0.5), 1e3 * percentile(steady, 0.99)


async def _run(
    stand: Stand, name: str, streams: int, output: int, hear: Callable[[list[int]], None]
) -> tuple[dict[str, float], float]:
    """CPU seconds by service, and seconds, of so many streams at once."""
    call = _FACES[name]
    await call(stand, 8, _Heard().count)  # what is loaded on first use is loaded
    pids = {kind: stand.service(kind)["pid"] for kind in ("gateway", "scheduler")}
    before, began = {kind: cpu_s(pid) for kind, pid in pids.items()}, time.perf_counter()
    await asyncio.gather(*(call(stand, output, hear) for _ in range(streams)))
    seconds = time.perf_counter() - began
    return {kind: cpu_s(pid) - before[kind] for kind, pid in pids.items()}, seconds


async def _measure() -> list[Figure]:
    found: list[Figure] = []
    async with control_plane() as stand:
        for name in _FACES:
            found += await rates(stand, name)
    async with control_plane(PACED_STEP_MS) as stand:
        for name in _FACES:
            found += await added(stand, name)
    return found


def figures() -> list[Figure]:
    """Measure."""
    return uvloop.run(_measure())
