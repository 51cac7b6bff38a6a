"""What the GPU bench measures, how it takes time, and where its figures go."""

from __future__ import annotations

import statistics
import time
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from bench.gpu_cases import TINY
from services.worker.engine.rope import Llama3Scaling, RopeSpec
from services.worker.engine.spec import Dense, LayerSpec, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Callable

LLAMA_3_8B = ModelSpec(
    vocab_size=128_256,
    hidden_size=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    layers=(LayerSpec(RopeSpec(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)), Dense(14_336)),) * 32,
    norm_eps=1e-5,
    context_length=16_384,
    tied_head=False,
    activation="silu",
    attention_scale=128**-0.5,
)


@dataclass(frozen=True)
class Plan:
    """What is measured, and on what."""

    device: str
    spec: ModelSpec
    dtype: torch.dtype
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    copied_bytes: int
    product: int
    repeats: int


ON_GPU = Plan(
    device="cuda",
    spec=LLAMA_3_8B,
    dtype=torch.bfloat16,
    rows=(1, 8, 32, 64),
    contexts=(1024, 8192),
    prompts=(2048, 8192),
    copied_bytes=4 << 30,
    product=8192,
    repeats=20,
)
TOY = Plan(
    device="cpu",
    spec=replace(TINY, tied_head=False),
    dtype=torch.float32,
    rows=(1, 2),
    contexts=(20, 40),
    prompts=(24,),
    copied_bytes=1 << 20,
    product=64,
    repeats=1,
)


@dataclass
class Report:
    """Lines of the table, and the same figures by name."""

    deadline: float
    lines: list[tuple[str, str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, note: str = "") -> None:
        """Keep a figure."""
        self.figures[name] = round(value, 4)
        self.lines.append((name, f"{value:10.3f} {unit} {note}"))
        print(f"{name}: {value:.3f} {unit} {note}", flush=True)

    def part(self, name: str, run: Callable[[], None]) -> None:
        """Run one part; one that fails is told of, and those after it run."""
        if time.monotonic() > self.deadline:
            self.lines.append((name, "not measured: no time was left"))
            return
        try:
            run()
        except Exception as error:  # whatever it was, the other figures count
            traceback.print_exc()
            self.failures.append(f"{name}: {type(error).__name__}: {error}")


class Clock:
    """Times what runs on a device, replayed from a CUDA graph so that no launch is in the way."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def ms(self, run: Callable[[], object], *, recorded: bool = True) -> float:
        """Median milliseconds of one run."""
        if self._plan.device == "cpu":
            began = time.perf_counter()
            run()
            return (time.perf_counter() - began) * 1e3
        run()
        torch.cuda.synchronize()
        if recorded:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
        run()
        return statistics.median(self._once(run) for _ in range(self._plan.repeats))

    def _once(self, run: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))
