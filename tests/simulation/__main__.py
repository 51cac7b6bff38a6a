"""`python -m tests.simulation`: run seeds, count what they met, print what broke."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from tests.simulation.auditor import STATES
from tests.simulation.faults import COUNTED
from tests.simulation.seeds import Report, run_seed, run_seeds

SEEDS = 2000


def main() -> int:
    """Run as asked; 1 when a promise broke or a fault never met a state."""
    parser = argparse.ArgumentParser(prog="make simulate ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first broken promise")
    asked = parser.parse_args()
    if asked.seed is not None:
        return _one(asked.seed, traced=asked.trace)
    return _many(range(asked.first, asked.first + asked.seeds), asked.jobs, fail_fast=asked.fail_fast)


def _one(seed: int, *, traced: bool) -> int:
    report = run_seed(seed, traced=traced)
    _say(*report.trace)
    _say(
        f"seed {seed}: {report.events} events, {report.requests} requests, {report.faults} faults, "
        f"hash {report.digest}, {dict(report.outcomes)}"
    )
    if report.broken:
        _say(f"BROKEN: {report.broken}")
    return bool(report.broken)


def _many(seeds: range, jobs: int, *, fail_fast: bool) -> int:
    started = time.perf_counter()
    met: Counter[tuple[str, str]] = Counter()
    outcomes: Counter[str] = Counter()
    total, broken = Counter[str](), list[Report]()
    for report in run_seeds(seeds, jobs):
        met.update(report.met)
        outcomes.update(report.outcomes)
        for name in ("events", "requests", "faults", "unresolved", "checks"):
            total[name] += getattr(report, name)
        if report.broken:
            broken.append(report)
            _print_broken(report, whole=len(broken) == 1)
            if fail_fast:
                break
    _print_table(met)
    _say(f"users: {dict(outcomes.most_common())}")
    took = time.perf_counter() - started
    _say(
        f"{len(seeds)} seeds in {took:.0f} s on {jobs} processes: "
        + ", ".join(f"{count} {name}" for name, count in total.items())
    )
    missing = [f"{state} x {fault}" for fault in COUNTED for state in STATES if not met[state, fault]]
    if missing:
        _say(f"never met: {'; '.join(missing)}")
    if broken:
        _say(f"BROKEN in {len(broken)} seeds: {[report.seed for report in broken][:20]}")
    return bool(missing or broken)


def _print_broken(report: Report, *, whole: bool) -> None:
    if whole:
        _say(*report.trace)
    _say(f"seed {report.seed} BROKEN: {report.broken}")
    _say(f'replay: make simulate ARGS="--seed {report.seed} --trace"')


def _print_table(met: Counter[tuple[str, str]]) -> None:
    width = max(map(len, COUNTED))
    _say(" " * width + "".join(f"{state[:10]:>11}" for state in STATES))
    for fault in COUNTED:
        _say(f"{fault:<{width}}" + "".join(f"{met[state, fault]:>11}" for state in STATES))


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
