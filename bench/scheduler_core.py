"""Time of plan() + commit() for many running sequences, with a worker that costs nothing."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import replace

from bench.figures import Figure
from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import Capacity, Request, StepPlan, StepResult

PROMPT, OUTPUT, PAGE_SIZE = 64, 400, 16
GOALS_MS = {256: 0.5, 1024: 2.0}


def filled_lane(sequences: int, depth: int) -> Lane:
    """Return a lane whose sequences all decode."""
    pages = sequences * (PROMPT + OUTPUT) // PAGE_SIZE * 2
    capacity = Capacity(PAGE_SIZE, pages, sequences, 8192, 4096, 50_000)
    lane = Lane("bench@1", replace(LaneLimits(), pipeline_depth=depth, max_queue_s=1e9, max_queue_pools=1e9))
    lane.add_replica("w0", capacity, 1, 0.0)
    for number in range(sequences):
        prompt = tuple((number * 31 + at) % 50_000 for at in range(PROMPT))
        lane.submit(Request(number + 1, f"tenant{number % 16}", prompt, OUTPUT), 0.0)
    return lane


def result_of(plan: StepPlan) -> StepResult:
    """Answer a plan in which every row decodes."""
    return StepResult(plan.epoch, plan.step, list(plan.slot), [7] * len(plan.slot))


def measure(sequences: int, depth: int = 1, steps: int = 200) -> list[float]:
    """Return milliseconds of plan() + commit() + effects() of steps in which all sequences decode."""
    lane = filled_lane(sequences, depth)
    now = 0.0
    found: list[float] = []
    while len(found) < steps:
        now += 0.01
        begin = time.perf_counter()
        plan = lane.plan("w0", now)
        planned = time.perf_counter()
        assert plan is not None
        result = result_of(plan)
        ready = time.perf_counter()
        lane.commit("w0", result, now)
        lane.effects()
        if sum(plan.token_count) == len(plan.slot) == sequences:
            found.append((time.perf_counter() - ready + planned - begin) * 1e3)
    return found


def figures() -> list[Figure]:
    """Measure."""
    gc.collect()
    gc.freeze()
    found: list[Figure] = []
    for sequences, goal in GOALS_MS.items():
        times = sorted(measure(sequences))
        p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
        title = f"plan + commit, {sequences:,} sequences"
        found += [
            Figure(f"{title}: least", times[0], "ms"),
            Figure(f"{title}: p50", p50, "ms", goal),
            Figure(f"{title}: p99", p99, "ms"),
        ]
    return found
