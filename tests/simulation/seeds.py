"""One seed, one world: it is made, disturbed, calmed and judged."""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.cluster import Cluster
from tests.simulation.epilogue import Epilogue
from tests.simulation.install import installed
from tests.simulation.kernel import Violation, World
from tests.simulation.storm import Storm
from tests.simulation.verdict import Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STORM_OVER_BY_S = 75.0
EPILOGUE_S = 30.0
LEAST = {"events": 1000, "requests": 20, "faults": 3}
SWEPT_S = 2.5  # by when gateways have looked after readers that left
POLL_S = 0.25
TRACE_LINES = 250


@dataclass(slots=True)
class Report:
    """What came of one seed."""

    seed: int
    digest: str = ""
    events: int = 0
    requests: int = 0
    faults: int = 0
    unresolved: int = 0
    checks: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: str = ""
    trace: list[str] = field(default_factory=list)


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one world from beginning to end."""
    gc.disable()
    sys.unraisablehook = lambda _: None  # what crashed processes leave behind is closed as it is forgotten
    world = World(seed)
    report = Report(seed)
    cluster = Cluster(world)
    storm = Storm(cluster)
    try:
        with installed(world, {server.name: server for server in cluster.workers}):
            _live(cluster, storm, report)
    except Violation as broken:
        report.broken = str(broken)
    if report.broken or traced:
        report.trace = world.trace(10_000 if traced else TRACE_LINES)
    report.digest, report.events = world.digest, world.events
    report.requests, report.faults = cluster.requests, storm.faults
    report.checks = cluster.auditor.checks
    report.outcomes = Counter(user.outcome.partition(" ")[0] for user in cluster.users)
    report.met = storm.met
    _shortfall(report)
    return report


def run_seeds(seeds: range, jobs: int) -> Iterator[Report]:
    """Run worlds side by side, in processes of their own; reports come in order."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=4)


def _live(cluster: Cluster, storm: Storm, report: Report) -> None:
    world = cluster.world
    storm.gather()
    cluster.start()
    _calm_down(cluster, lambda: storm.over, STORM_OVER_BY_S)
    epilogue = Epilogue(cluster)
    epilogue.begin()
    _calm_down(cluster, lambda: True, world.now + EPILOGUE_S)
    world.run(world.now + SWEPT_S)
    epilogue.judge()
    judge = Judge(cluster)
    judge.judge()
    report.unresolved = judge.unresolved


def _calm_down(cluster: Cluster, over: Callable[[], bool], by: float) -> None:
    world = cluster.world
    quiet = [False]

    def look() -> None:
        quiet[0] = over() and cluster.quiet()
        if not quiet[0]:
            world.after(POLL_S, look)

    look()
    world.run(by, lambda: quiet[0])
    if not quiet[0]:
        world.fail("it did not become quiet: " + cluster.unrest())


def _shortfall(report: Report) -> None:
    for name, least in LEAST.items():
        if not report.broken and getattr(report, name) < least:
            report.broken = f"only {getattr(report, name)} {name}, at least {least} are due"
