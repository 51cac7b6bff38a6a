"""The engine's steps alone, each precision in a process of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.processes import module
from kit import artifacts
from tests.models import SMOLLM2, imported

PRECISIONS = ("bfloat16", "int8")
ROWS, CONTEXT, STEPS = (1, 8, 32), 200, 20
STEP_OF_PRODUCTS = 1.6
PROMPT, CHUNK, PROMPTS = 512, 128, 3


def measure(artifact: Path, dtype: Any) -> list[Figure]:  # noqa: ANN401 - as the configuration reads it
    """Decode steps and prompt chunks."""
    # Torch stays out of the process that runs the other benches.
    from bench.engine_steps import GREEDY, Bench  # noqa: PLC0415
    from services.worker.engine import EngineConfig  # noqa: PLC0415

    bench = Bench(artifact, EngineConfig(dtype=dtype, page_count=1024))
    found = [Figure(f"{dtype}: load", bench.load_s, "s", 5.0)]
    for rows in ROWS:
        times = bench.decode(rows, CONTEXT, STEPS, GREEDY)
        title = f"{dtype}: decode step, {rows} rows of {CONTEXT} tokens"
        found += [
            Figure(f"{title}, median", times["step_ms"], "ms"),
            Figure(f"{title}, least", times["least_step_ms"], "ms"),
        ]
        if "step_of_products" in times:
            title = f"{dtype}: decode step over its products alone, {rows} rows"
            goal = STEP_OF_PRODUCTS if rows == max(ROWS) else None
            found.append(Figure(title, times["step_of_products"], "", goal))
    rates = bench.prefill(PROMPT, CHUNK, PROMPTS)
    title = f"{dtype}: prompt of {PROMPT} in chunks of {CHUNK}"
    found += [
        Figure(f"{title}, median", rates["tokens_per_s"], "tok/s"),
        Figure(f"{title}, most", rates["most_tokens_per_s"], "tok/s"),
    ]
    return found


def figures() -> list[Figure]:
    """Measure."""
    found: list[Figure] = []
    with imported("smollm2", SMOLLM2) as models:
        (artifact,) = artifacts.versions(models)
        for dtype in PRECISIONS:
            with module("bench.engine", [str(artifact), dtype]) as process:
                lines, _ = process.communicate()
            found += [Figure(**json.loads(line)) for line in lines.splitlines()]
    return found


if __name__ == "__main__":
    for one in measure(Path(sys.argv[1]), sys.argv[2]):
        print(json.dumps(asdict(one)))
