"""Time of the engine's steps alone: decode at several batch sizes, and prompts in chunks.

Every figure is the median, or the least, of the measured steps of one process. `forward` and `sample` are the
engine's own account of a step; `cpu` is what all threads took together, which on a busy machine says more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from services.worker.engine import EngineConfig, load_engine
from services.worker.engine.native.decoder import NativeDecoder
from tokenloom.api.worker.v1 import worker_pb2

PAGE = 16
GREEDY = worker_pb2.Sampling(top_p=1.0)
RANDOM = {
    "top_p": worker_pb2.Sampling(temperature=1.0, top_p=0.9),
    "flat": worker_pb2.Sampling(temperature=1.0, top_p=1.0),
    "flat top_p": worker_pb2.Sampling(temperature=3.0, top_p=0.95),
}


class Bench:
    """Drives an engine with plans of its own, page tables in random order."""

    def __init__(self, artifact: Path, config: EngineConfig) -> None:
        began = time.perf_counter()
        self.engine = load_engine(artifact, config)
        self.load_s = time.perf_counter() - began
        self.random = np.random.default_rng(7)

    def decode(self, rows: int, context: int, steps: int, sampling: worker_pb2.Sampling) -> dict[str, float]:
        """Milliseconds of one step in which every row decodes one token, and of its products alone.

        In turn, since a machine's state may change between two steps; where torch computes, no products.
        """
        self._prefill(self._start(rows, context, steps + 1, sampling), rows, context, 256)
        forward = getattr(self.engine, "forward", None)
        found: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(steps):
            plan = worker_pb2.StepPlan(slot=range(rows), token_count=[1] * rows)
            began, cpu_began = time.perf_counter(), time.process_time()
            result = self.engine.execute(plan)
            found["step"].append((time.perf_counter() - began) * 1e3)
            found["cpu"].append((time.process_time() - cpu_began) * 1e3)
            found["forward"].append(result.forward_us / 1e3)
            found["sample"].append(result.sample_us / 1e3)
            assert len(result.token_id) == rows
            if isinstance(forward, NativeDecoder):
                began = time.perf_counter()
                forward.products(rows)
                found["products"].append((time.perf_counter() - began) * 1e3)
        shown = {f"{name}_ms": statistics.median(times) for name, times in found.items()}
        if "products" in found:
            shown["step_of_products"] = shown["step_ms"] / shown["products_ms"]
        return shown | {f"least_{name}_ms": min(times) for name, times in found.items()}

    def prefill(self, prompt: int, chunk: int, repeats: int) -> dict[str, float]:
        """Prompt tokens a second of one prompt in chunks."""
        times, cpu = [], []
        for _ in range(repeats):
            plan, began = self._start(1, prompt, 1, GREEDY), time.process_time()
            times.append(self._prefill(plan, 1, prompt, chunk))
            cpu.append(time.process_time() - began)
        return {
            "tokens_per_s": prompt / statistics.median(times),
            "most_tokens_per_s": prompt / min(times),
            "tokens_per_cpu_s": prompt / min(cpu),
        }

    def _start(self, rows: int, prompt: int, room: int, sampling: worker_pb2.Sampling) -> worker_pb2.StepPlan:
        self.engine.reset()
        pages = -(-(prompt + room) // PAGE)
        order = self.random.permutation(self.engine.page_count)[: rows * pages].reshape(rows, pages)
        plan = worker_pb2.StepPlan()
        for row in range(rows):
            new = plan.add.add(
                slot=row,
                sequence_id=row + 1,
                token_ids=self.random.integers(0, self.engine.vocab_size, prompt).tolist(),
                prompt_len=prompt,
                pages=order[row].tolist(),
                sampling=sampling,
            )
            new.sampling.seed = row
        return plan

    def _prefill(self, plan: worker_pb2.StepPlan, rows: int, prompt: int, chunk: int) -> float:
        began = time.perf_counter()
        for row in range(rows):
            for start in range(0, prompt, chunk):
                plan.slot[:], plan.token_count[:] = [row], [min(chunk, prompt - start)]
                result = self.engine.execute(plan)
                assert not result.row_error, result.row_error
                plan = worker_pb2.StepPlan()
        return time.perf_counter() - began


def measure(bench: Bench, rows: list[int], context: int, steps: int, chunks: list[int]) -> dict[str, object]:
    """Return every figure by what was measured."""
    found: dict[str, object] = {"revision": bench.engine.runtime_revision, "load_s": round(bench.load_s, 2)}
    for count in rows:
        found[f"decode {count} greedy"] = bench.decode(count, context, steps, GREEDY)
    for name, sampling in RANDOM.items() if rows else ():
        found[f"decode {max(rows)} {name}"] = bench.decode(max(rows), context, max(steps // 3, 3), sampling)
    for chunk in chunks:
        found[f"prefill 512 by {chunk}"] = bench.prefill(512, chunk, 3)
    return found


def main() -> None:
    """Measure what the arguments ask for: one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--chunks", type=int, nargs="*", default=[64, 256])
    asked = parser.parse_args()
    config = EngineConfig(dtype=asked.dtype, kernels=asked.kernels, threads=asked.threads, page_count=2048)
    bench = Bench(asked.artifact, config)
    found = measure(bench, asked.rows, asked.context, asked.steps, asked.chunks)
    for name, value in found.items():
        shown = {key: round(number, 2) for key, number in value.items()} if isinstance(value, dict) else value
        print(f"{name:22}", json.dumps(shown))


if __name__ == "__main__":
    main()
