"""Every GPU kernel, and a small model of them, beside what torch computes on the same device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from bench.gpu_cases import TINY, heads_of, make_batch, make_case
from services.worker.engine.decoder import Decoder
from services.worker.engine.gpu import CudaCapture, GpuDecoder, GpuPool, GpuSampler, attention, operations
from services.worker.engine.gpu.step import build_step
from services.worker.engine.noise import row_keys
from services.worker.engine.rope import RopeSpec, inverse_frequencies, rotate_, rotation
from services.worker.engine.sampling import Draws, draw
from services.worker.engine.spec import Dense, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.gpu_cases import Shape
    from services.worker.engine.spec import ModelSpec

EPSILON = 1e-5
ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
LLAMA_HEADS: Shape = {"heads": 32, "kv_heads": 8, "head_dim": 128, "attention_scale": 128**-0.5}


class Check(NamedTuple):
    """The greatest difference found, and how great it may be; a NaN is never allowed."""

    name: str
    worst: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the kernel is right."""
        return self.worst <= self.allowed


class RandomWeights:
    """Stands in for a checkpoint: every tensor that is asked for is made, the same each time."""

    def __init__(self, dtype: torch.dtype, device: str, scale: float = 0.02) -> None:
        self.dtype = dtype
        self.device = device
        self.bytes = 0
        self._scale = scale

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return random numbers of that shape, near 1 where they are a norm's."""
        generator = torch.Generator(self.device).manual_seed(sum(name.encode()))
        tensor = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        tensor.normal_(1.0 if "norm" in name else 0.0, self._scale, generator=generator)
        self.bytes += tensor.nbytes
        return tensor

    def join(self, parts: dict[str, int], *tail: int) -> torch.Tensor:
        """Concatenate tensors of `rows` x tail, named in order, along their rows."""
        return torch.cat([self.take(name, rows, *tail) for name, rows in parts.items()])


def run_checks(device: str, *, small: bool) -> Iterator[Check]:
    """Check kernel by kernel; `small` keeps to sizes that an interpreter gets through."""
    for dtype in ALLOWED:
        yield from attention_checks(device, dtype, small=small)
        yield from operation_checks(device, dtype, 64 if small else 4096)
    yield from sampling_checks(device, 4 if small else 64, 3000 if small else 128_256)
    yield model_check(device, small=small)


def attention_checks(device: str, dtype: torch.dtype, *, small: bool) -> Iterator[Check]:
    """Decoding rows in one part and in several, prompts, windows and caps; NaN in all that is unwritten."""
    rows = (
        [(1, 90), (1, 33), (20, 50)] if small else [(1, 8000), (1, 1025), (1, 1), (2000, 2000), (300, 5000)]
    )
    for window, cap in ((0, None), (24 if small else 1024, 5.0)):
        shape: Shape = {"attention_cap": cap} if small else {**LLAMA_HEADS, "attention_cap": cap}
        case = make_case(rows, device=device, dtype=dtype, **shape)
        heads = heads_of(case.spec)
        tuning = attention.prefill_tuning(float32=dtype == torch.float32)
        step = build_step(case.batch, case.qkv.device, attention.tile_queries(heads, tuning))
        expected = case.expected(window or None)
        out = torch.empty_like(expected)
        layer = case.pool.data[0]
        attention.prefill(case.qkv, layer, step, heads, window=window, out=out, tuning=tuning)
        for splits in (1, 16):
            out[: step.singles] = torch.nan
            attention.decode(case.qkv, layer, step, heads, window=window, out=out, splits=splits)
            yield check(f"attention, {splits} parts, window {window}, {dtype}", out, expected)


def operation_checks(device: str, dtype: torch.dtype, width: int) -> Iterator[Check]:
    """Norm with addition, rotation with the KV write, activation."""
    stream, addend = torch.randn(5, width, device=device), torch.randn(5, width, device=device).to(dtype)
    weight = torch.randn(width, device=device)
    expected = F.rms_norm(stream + addend.float(), (width,), weight, EPSILON).to(dtype)
    out = operations.add_norm(stream, weight, torch.empty_like(addend), EPSILON, addend=addend)
    yield check(f"add_norm, {dtype}", out, expected)
    gate_up = torch.randn(5, 2 * width, device=device).to(dtype)
    gate, up = gate_up.float().chunk(2, -1)
    for gelu in (False, True):
        active = F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)
        yield check(f"gated, gelu {gelu}, {dtype}", operations.gated(gate_up, gelu=gelu), active * up)
    yield rotation_check(device, dtype)


def rotation_check(device: str, dtype: torch.dtype) -> Check:
    """Queries that were turned, and keys that were and went to their pages."""
    case = make_case([(1, 90), (7, 40)], device=device, dtype=dtype)
    spec, tokens = case.spec, len(case.qkv)
    heads = case.qkv.clone().float().view(tokens, -1, spec.head_dim)
    frequencies = inverse_frequencies(spec.layers[0].rope, spec.head_dim).to(device)
    positions = torch.from_numpy(case.batch.positions).to(device)
    rotate_(heads[:, : spec.heads + spec.kv_heads], *rotation(positions, frequencies, torch.float32))
    step = build_step(case.batch, case.qkv.device, 16)
    layer = case.pool.data[0]
    operations.rotate_and_write(
        case.qkv, layer, step, heads_of(spec), frequencies, head_norm=None, epsilon=EPSILON
    )
    queries = case.qkv.view(heads.shape)[:, : spec.heads]
    cells = torch.from_numpy(case.batch.cells).to(device)
    kept = layer[cells // case.pool.page_size, :, cells % case.pool.page_size]
    return check(f"rotate_and_write, {dtype}", torch.cat((queries, kept), 1), heads)


def sampling_checks(device: str, rows: int, vocabulary: int) -> Iterator[Check]:
    """Rows that draw another token than the reference, of all rows."""
    index = np.arange(rows)
    logits = torch.randn(rows, vocabulary, device=device) * 3
    for top_k, top_p, min_p, temperature in (
        (0, 1, 0, 0),
        (50, 1, 0, 1),
        (0, 0.9, 0, 1),
        (200, 0.95, 0.01, 2),
    ):
        draws = Draws(
            temperature=np.full(rows, float(temperature)),
            top_k=np.full(rows, top_k),
            top_p=np.full(rows, float(top_p)),
            min_p=np.full(rows, float(min_p)),
            top_logprobs=np.full(rows, -1),
            keys=row_keys(index, index, index),
        )
        other = GpuSampler()(logits, draws).token_id != draw(logits, draws).token_id
        yield Check(f"sampling, top_k {top_k}, top_p {top_p}, min_p {min_p}", float(other.mean()), 0.0)


def model_check(device: str, *, small: bool) -> Check:
    """A model with windows and caps, in float32: prompts beside decoding rows, then a recorded step."""
    layer = LayerSpec(RopeSpec(10_000.0), Dense(96 if small else 1024))
    spec = replace(
        TINY,
        layers=(layer, replace(layer, window=24)),
        hidden_size=64 if small else 512,
        head_dim=16 if small else 128,
        attention_cap=30.0,
        logit_cap=20.0,
        head_norms=True,
        output_norms=True,
    )
    mixed, decoding = [(1, 70), (1, 20), (9, 30)], [(1, 70), (1, 20), (1, 31)]
    found = logits_of(spec, device, [mixed, decoding], torch_alone=False)
    expected = logits_of(spec, device, [mixed, decoding], torch_alone=True)
    return check("a small model, float32", found, expected, 1e-3)


def recorder(device: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """CUDA's; without it what was to be recorded runs again each time."""
    return CudaCapture() if device == "cuda" else lambda run: run


def logits_of(
    spec: ModelSpec, device: str, steps: Sequence[Sequence[tuple[int, int]]], *, torch_alone: bool
) -> torch.Tensor:
    """What the steps give one after another, recorded where they can be, or from the torch reference."""
    weights: Any = RandomWeights(torch.float32, device, 0.1)
    batches = [make_batch(rows, 16, spec.vocab_size, seed=1) for rows in steps]
    pages = max(count for _, count in batches)
    pool = GpuPool(spec, pages, 16, torch.float32, device)
    torch.manual_seed(3)
    pool.data.copy_(torch.randn(pool.data.shape))
    forward: Decoder | GpuDecoder
    if torch_alone:
        forward = Decoder(spec, weights, pool)
    else:
        forward = GpuDecoder(spec, weights, pool)
        forward.record(4, recorder(device))
    with torch.inference_mode():
        return torch.cat([forward(batch).clone() for batch, _ in batches])


def check(name: str, found: torch.Tensor, expected: torch.Tensor, allowed: float | None = None) -> Check:
    """The greatest difference, relative where numbers are above 1; `found` has the precision that counts."""
    allowed = allowed or ALLOWED[found.dtype]
    found, expected = found.float(), expected.float()
    worst = ((found - expected).abs() / expected.abs().clamp_min(1)).max().item()
    return Check(name.replace("torch.", ""), worst, allowed)
