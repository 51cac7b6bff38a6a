"""The GPU engine on the machine at hand: is every kernel right, and how near is it to the hardware's limit?

First each kernel beside torch, then the limits (copy bandwidth, bfloat16 products), the kernels, and a model
of Llama 3 8B's shape with random weights: decode steps and prompts. A table comes last; parts for which
there is no time left are named. `--interpret` runs all of it at toy sizes on a CPU, which times nothing.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton

from bench import results
from bench.gpu_cases import heads_of, make_batch
from bench.gpu_checks import RandomWeights, recorder, run_checks
from bench.gpu_plan import ON_GPU, TOY, Clock, Plan, Report
from services.worker.engine.gpu import GpuDecoder, GpuPool, GpuSampler, attention, operations
from services.worker.engine.gpu.step import build_step
from services.worker.engine.noise import row_keys
from services.worker.engine.sampling import Draws

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.worker.engine.batch import Batch

PAGE = 16
# What a kernel reads in a row when it is timed, so that it finds little of it in the cache.
_COLD_BYTES = 512 << 20


class Bench:
    """Every measurement, over one report."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self.plan = plan
        self.report = report
        self.clock = Clock(plan)
        self.bytes_per_ms = float("nan")
        self.flops_per_ms = float("nan")

    def check(self) -> None:
        """Every kernel beside torch."""
        for check in run_checks(self.plan.device, small=self.plan is TOY):
            self.report.figures[f"error: {check.name}"] = check.worst
            print(f"{'ok' if check.holds else 'WRONG'} {check.name}: {check.worst:.2g}", flush=True)
            if not check.holds:
                self.report.failures.append(f"{check.name}: off by {check.worst:.2g} > {check.allowed:.2g}")

    def limits(self) -> None:
        """What the hardware does at most, as torch gets it."""
        source = torch.empty(self.plan.copied_bytes, dtype=torch.uint8, device=self.plan.device)
        target = torch.empty_like(source)
        self.bytes_per_ms = 2 * self.plan.copied_bytes / self.clock.ms(lambda: target.copy_(source))
        self.report.add("copy bandwidth", self.bytes_per_ms / 1e9, "TB/s", "read and written")
        size = self.plan.product
        left, right = torch.randn(2, size, size, device=self.plan.device).to(self.plan.dtype)
        out = torch.empty_like(left)
        self.flops_per_ms = 2 * size**3 / self.clock.ms(lambda: torch.mm(left, right, out=out))
        self.report.add("product rate", self.flops_per_ms / 1e9, "TFLOP/s", f"{size} cubed")

    def decode_attention(self) -> None:
        """Paged decode attention: share of the copy bandwidth, and other settings where they are better."""
        for context in reversed(self.plan.contexts):
            for rows in self.plan.rows:
                run, read = self._decoding(rows, context)
                splits = attention.splits_for(rows, self.plan.spec.kv_heads)
                ms = self.clock.ms(partial(run, attention.DECODE, None))
                name = f"decode attention {rows} x {context}"
                self.report.add(name, ms, "ms", f"{self._of_copy(read, ms)} in {splits} parts")
                if self.plan is ON_GPU and time.monotonic() < self.report.deadline - 240:
                    self._better(name, run, ms)

    def _better(self, name: str, run: Callable[[attention.Tuning, int | None], None], ms: float) -> None:
        default, found = attention.DECODE, []
        tunings = [replace(default, keys=keys, warps=warps) for keys in (32, 64, 128) for warps in (4, 8)]
        choices = [(tuning, None) for tuning in tunings] + [(default, splits) for splits in (1, 4, 16, 64)]
        for tuning, splits in choices:
            took = self.clock.ms(partial(run, tuning, splits))
            found.append((took, f"{tuning.keys} keys, {tuning.warps} warps, {splits or 'usual'} parts"))
        best, how = min(found)
        if best < 0.97 * ms:
            self.report.add(f"{name}, best found", best, "ms", how)

    def _decoding(
        self, rows: int, context: int
    ) -> tuple[Callable[[attention.Tuning, int | None], None], float]:
        """Attention of a few layers over pages in random order, and how many bytes it reads."""
        plan, heads = self.plan, heads_of(self.plan.spec)
        batch, pages = make_batch([(1, context)] * rows, PAGE, plan.spec.vocab_size, seed=rows)
        one_reads = rows * context * 2 * heads.kv_count * heads.dim * plan.dtype.itemsize
        count = min(len(plan.spec.layers), max(_COLD_BYTES // one_reads, 1))
        spec = replace(plan.spec, layers=plan.spec.layers[:count])
        layers = GpuPool(spec, pages, PAGE, plan.dtype, plan.device).data.normal_()
        qkv = torch.randn(rows, (heads.count + 2 * heads.kv_count) * heads.dim, device=plan.device)
        qkv = qkv.to(plan.dtype)
        step = build_step(batch, qkv.device, 1)
        out = qkv.new_empty(rows, heads.count * heads.dim)

        def run(tuning: attention.Tuning, splits: int | None) -> None:
            for layer in layers:
                attention.decode(qkv, layer, step, heads, window=0, out=out, tuning=tuning, splits=splits)

        return run, count * one_reads

    def prefill_attention(self) -> None:
        """Attention of one prompt: share of the product rate, the half that is masked left out."""
        plan, heads = self.plan, heads_of(self.plan.spec)
        for tokens in plan.prompts:
            batch, pages = make_batch([(tokens, tokens)], PAGE, plan.spec.vocab_size, seed=tokens)
            one = replace(plan.spec, layers=plan.spec.layers[:1])
            layer = GpuPool(one, pages, PAGE, plan.dtype, plan.device).data[0].normal_()
            qkv = torch.randn(tokens, (heads.count + 2 * heads.kv_count) * heads.dim, device=plan.device)
            qkv = qkv.to(plan.dtype)
            tuning = attention.prefill_tuning(float32=plan.dtype == torch.float32)
            step = build_step(batch, qkv.device, attention.tile_queries(heads, tuning))
            ms = self.clock.ms(partial(attention.attend, qkv, layer, step, heads, 0))
            share = 2 * tokens**2 * heads.count * heads.dim / ms / self.flops_per_ms
            self.report.add(f"prefill attention {tokens}", ms * 1e3, "us", f"{share:.0%} of the product rate")

    def small_kernels(self) -> None:
        """What runs between the products, for the most rows, and drawing tokens."""
        plan, rows = self.plan, self.plan.rows[-1]
        inner = plan.spec.layers[0].feed_forward.inner
        stream = torch.randn(rows, plan.spec.hidden_size, device=plan.device)
        weight, addend = torch.ones_like(stream[0]), stream.to(plan.dtype)
        out, gate_up = torch.empty_like(addend), torch.randn(rows, 2 * inner, device=plan.device)
        gate_up = gate_up.to(plan.dtype)
        ms = self.clock.ms(lambda: operations.add_norm(stream, weight, out, 1e-5, addend=addend))
        self.report.add(f"add_norm {rows}", ms * 1e3, "us")
        ms = self.clock.ms(lambda: operations.gated(gate_up, gelu=False))
        self.report.add(f"gated {rows}", ms * 1e3, "us")
        logits, sampler = torch.randn(rows, plan.spec.vocab_size, device=plan.device) * 3, GpuSampler()
        for name, fields in {"greedy": (0.0, 1.0), "whole": (1.0, 1.0), "top-p": (1.0, 0.9)}.items():
            draws = draws_of(rows, *fields)
            ms = self.clock.ms(partial(sampler, logits, draws), recorded=False)
            self.report.add(f"sampling {rows} {name}", ms * 1e3, "us", "with both transfers")

    def model(self) -> None:
        """The whole model: decode steps against what must be read, prompts against the product rate."""
        plan, spec = self.plan, self.plan.spec
        batches = {
            (rows, context): make_batch([(1, context)] * rows, PAGE, spec.vocab_size, seed=rows)
            for context in plan.contexts
            for rows in plan.rows
        }
        weights: Any = RandomWeights(plan.dtype, plan.device)
        pages = max(count for _, count in batches.values()) + max(plan.prompts) // PAGE + 1
        pool = GpuPool(spec, pages, PAGE, plan.dtype, plan.device)
        pool.data.normal_()
        decoder = GpuDecoder(spec, weights, pool)
        began = time.perf_counter()
        decoder.record(plan.rows[-1], recorder(plan.device))
        self.report.add("graphs recorded", time.perf_counter() - began, "s")
        embedding = spec.vocab_size * spec.hidden_size * plan.dtype.itemsize
        read = weights.bytes - embedding
        for (rows, context), (batch, _) in batches.items():
            kv = rows * context * pool.data[:, 0, :, 0].nbytes
            self._decode_step(decoder, batch, f"step {rows} x {context}", read + kv)
        for tokens in plan.prompts:
            batch, _ = make_batch([(tokens, tokens)], PAGE, spec.vocab_size, seed=tokens)
            self._prompt(decoder, batch, tokens, (read - embedding) // plan.dtype.itemsize)

    def _decode_step(self, decoder: GpuDecoder, batch: Batch, name: str, read: float) -> None:
        sampler, draws = GpuSampler(), draws_of(len(batch.counts), 0.0, 1.0)
        with torch.inference_mode():
            # One after another, so that the host prepares a step while the device runs the one before.
            device_ms = self.clock.ms(lambda: [decoder(batch) for _ in range(4)], recorded=False) / 4
            times = []
            for _ in range(self.plan.repeats):
                began = time.perf_counter()
                sampler(decoder(batch), draws)
                times.append((time.perf_counter() - began) * 1e3)
        whole = statistics.median(times)
        limit = read / self.bytes_per_ms
        self.report.figures[f"{name}, limit"] = limit
        self.report.figures[f"{name}, with drawing"] = whole
        note = f"{device_ms / limit:.2f} x the limit of {limit:.3f}; with drawing {whole:.3f} ms"
        self.report.add(name, device_ms, "ms", note)

    def _prompt(self, decoder: GpuDecoder, batch: Batch, tokens: int, parameters: int) -> None:
        spec = self.plan.spec
        with torch.inference_mode():
            ms = self.clock.ms(lambda: decoder(batch), recorded=False)
        flops = 2 * parameters * tokens + 2 * tokens**2 * spec.heads * spec.head_dim * len(spec.layers)
        share = flops / ms / self.flops_per_ms
        self.report.add(f"prompt {tokens}", tokens / ms * 1e3, "tokens/s", f"{share:.0%} of the product rate")

    def _of_copy(self, read: float, ms: float) -> str:
        return f"{read / ms / self.bytes_per_ms:.0%} of the copy bandwidth"


def draws_of(rows: int, temperature: float, top_p: float) -> Draws:
    """Alike for all rows, apart from their noise."""
    index = np.arange(rows)
    return Draws(
        temperature=np.full(rows, temperature),
        top_k=np.zeros(rows, np.int64),
        top_p=np.full(rows, top_p),
        min_p=np.zeros(rows),
        top_logprobs=np.full(rows, -1),
        keys=row_keys(index, index, index),
    )


def main() -> int:
    """Run every part; 1 where a kernel is wrong or a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interpret", action="store_true", help="toy sizes under Triton's interpreter")
    parser.add_argument("--minutes", type=float, default=7.5, help="after which no further part begins")
    asked = parser.parse_args()
    if not asked.interpret and not torch.cuda.is_available():
        print("there is no GPU here: --interpret runs the script at toy sizes without one", file=sys.stderr)
        return 2
    plan = TOY if asked.interpret else ON_GPU
    report = Report(time.monotonic() + 60 * asked.minutes)
    bench = Bench(plan, report)
    for part in (
        bench.check,
        bench.limits,
        bench.model,
        bench.decode_attention,
        bench.prefill_attention,
        bench.small_kernels,
    ):
        report.part(part.__name__, part)
        if not asked.interpret:
            gc.collect()  # recorded steps and their model hold one another
            torch.cuda.empty_cache()
    if not asked.interpret:
        device = torch.cuda.get_device_name()
        versions = {"gpu": device, "cuda": torch.version.cuda, "triton": triton.__version__}
        path = results.write("gpu", {"on": versions, "figures": report.figures, "failures": report.failures})
        print(f"written to {path}")
    width = max((len(name) for name, _ in report.lines), default=0)
    for name, value in report.lines:
        print(f"{name:{width}}  {value}")
    for failure in report.failures:
        print(f"FAILED {failure}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
