"""`make bench-profile`: the whole platform under steady streams, and what its processes spend time on.

py-spy samples gateway, scheduler and worker from outside, without stopping them. CPU is the processes' own
account of the same seconds: the platform's share of a step is that of gateway and scheduler.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from bench.callers import over_http
from bench.hollow import control_plane
from bench.processes import cpu_s
from bench.results import write
from bench.stand import Stand, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KINDS = ("gateway", "scheduler", "worker")
OUTPUT, WARM_S, RATE = 1_500, 3.0, 200
_PY_SPY = Path(sys.executable).parent / "py-spy"
Shares = list[tuple[str, float]]


async def measure(stand: Stand, streams: int, seconds: int) -> dict[str, object]:
    """CPU of each process in ms a step and ms a second, and its top functions by share of its samples."""
    callers = [asyncio.create_task(_for_ever(stand)) for _ in range(streams)]
    try:
        await asyncio.sleep(WARM_S)
        pids = {kind: stand.service(kind)["pid"] for kind in KINDS}
        steps = stand.metric("scheduler", "tokenloom_scheduler_steps_total")
        spent = {kind: cpu_s(pid) for kind, pid in pids.items()}
        began = time.perf_counter()
        found = await asyncio.gather(*(_sample(pid, seconds) for pid in pids.values()))
        took = time.perf_counter() - began
        spent = {kind: cpu_s(pid) - spent[kind] for kind, pid in pids.items()}
        steps = stand.metric("scheduler", "tokenloom_scheduler_steps_total") - steps
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
    return {
        "streams": streams,
        "step_ms": took / steps * 1e3,
        "cpu_ms_a_step": {kind: value / steps * 1e3 for kind, value in spent.items()},
        "own": {kind: own for kind, (own, _) in zip(KINDS, found, strict=True)},
        "with_callees": {kind: whole for kind, (_, whole) in zip(KINDS, found, strict=True)},
    }


async def _for_ever(stand: Stand) -> None:
    while True:
        await over_http(stand, OUTPUT, lambda _: None)


async def _sample(pid: int, seconds: int) -> tuple[Shares, Shares]:
    """Top functions of a process by their own samples, and with what they call."""
    with tempfile.NamedTemporaryFile() as raw:
        options = ("--duration", str(seconds), "--rate", str(RATE), "--format", "raw", "--output", raw.name)
        process = await asyncio.create_subprocess_exec(
            *(_PY_SPY, "record", "--pid", str(pid), "--nonblocking", *options),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await process.wait():
            raise RuntimeError("py-spy may not read another process here: it needs ptrace")
        return _tops(await asyncio.to_thread(Path(raw.name).read_text))


def _tops(stacks: str) -> tuple[Shares, Shares]:
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    total = 0
    for line in stacks.splitlines():
        frames, _, count = line.rpartition(" ")
        stack = frames.split(";")
        total += int(count)
        own[stack[-1]] += int(count)
        whole.update(dict.fromkeys(stack, int(count)))
    return _shares(own, total), _shares(whole, total)


def _shares(counts: Counter[str], total: int) -> Shares:
    return [(name, round(count / total, 4)) for name, count in counts.most_common(40)]


def _print(found: dict[str, object], most: int) -> None:
    cpu, own, whole = found["cpu_ms_a_step"], found["own"], found["with_callees"]
    assert isinstance(cpu, dict)
    assert isinstance(own, dict)
    assert isinstance(whole, dict)
    share = (cpu["gateway"] + cpu["scheduler"]) / sum(cpu.values())
    print(f"\n{found['streams']} streams: a step {found['step_ms']:.1f} ms; CPU a step:")
    print(", ".join(f"{kind} {value:.2f} ms" for kind, value in cpu.items()))
    print(f"gateway and scheduler are {share:.1%} of the step's CPU (goal 12 %)")
    for kind in KINDS:
        print(f"\n{kind}: own time, share of its samples | with what it calls")
        for (name, part), (outer, inner) in zip(own[kind][:most], whole[kind][:most], strict=False):
            print(f"  {part:6.1%} {name[:62]:62} | {inner:6.1%} {outer[:62]}")


@contextlib.asynccontextmanager
async def _platform(dtype: str) -> AsyncIterator[Stand]:
    async with control_plane(25.0) if dtype == "hollow" else running(dtype) as stand:
        yield stand


async def _measure(dtype: str, streams: list[int], seconds: int) -> list[dict[str, object]]:
    async with _platform(dtype) as stand:
        return [await measure(stand, count, seconds) for count in streams]


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(prog="make bench-profile", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--dtype", default="bfloat16", help="hollow: a worker that computes nothing")
    parser.add_argument("--most", type=int, default=15, help="functions shown of each process")
    asked = parser.parse_args()
    found = asyncio.run(_measure(asked.dtype, asked.streams, asked.seconds))
    for one in found:
        _print(one, asked.most)
    print(f"kept in {write('profile', {'dtype': asked.dtype, 'profiles': found})}")


if __name__ == "__main__":
    main()
