"""`make bench`: this platform alone, one bench after the other; a table last, goals beside the figures."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from bench.figures import Figure, table
from bench.results import write
from kit import log

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCHES = ("engine", "start", "scheduler_core", "streams", "streaming", "ledger")


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for, keep it and print it."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("benches", nargs="*", choices=[*BENCHES, []], help="all, if none is named")
    asked = parser.parse_args(arguments).benches or BENCHES
    log.configure("bench", fmt="console", level="ERROR")
    found: dict[str, list[Figure]] = {}
    load: dict[str, float] = {}
    for name in asked:
        began, load[name] = time.perf_counter(), os.getloadavg()[0]
        found[name] = importlib.import_module(f"bench.{name}").figures()
        seconds = time.perf_counter() - began
        print(f"{name}: {seconds:.0f} s, load of the machine {load[name]:.1f}", flush=True)
    for name, figures in found.items():
        print(f"\n{name}\n{table(figures)}")
    kept = {name: [asdict(figure) for figure in figures] for name, figures in found.items()}
    print(f"\nkept in {write('ours', {'load': load, 'figures': kept})}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
