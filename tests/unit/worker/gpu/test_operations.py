"""The small kernels against what torch computes, under the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

pytest.importorskip("triton", reason="Triton is not installed")

from bench.gpu_cases import Case, heads_of, make_case
from services.worker.engine.feed_forward import Gated
from services.worker.engine.gpu.operations import FusedGated, add_norm, gated, rotate_and_write
from services.worker.engine.gpu.step import Step, build_step
from services.worker.engine.linear import make_linear
from services.worker.engine.rope import inverse_frequencies, rotate_, rotation

CPU = torch.device("cpu")
EPSILON = 1e-5
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("norms_addend", [False, True])
@pytest.mark.parametrize("width", [64, 100])
def test_addition_and_norm_are_those_of_torch(dtype: torch.dtype, norms_addend: bool, width: int) -> None:
    stream, addend = torch.randn(3, width), torch.randn(3, width).to(dtype)
    weight, addend_norm = torch.randn(width), torch.randn(width) if norms_addend else None
    added = addend.float()
    if addend_norm is not None:
        added = F.rms_norm(added, (width,), addend_norm, EPSILON)
    expected = stream + added
    out = torch.empty(3, width, dtype=dtype)
    add_norm(stream, weight, out, EPSILON, addend=addend, addend_norm=addend_norm)
    torch.testing.assert_close(stream, expected, atol=2e-6, rtol=2e-6)
    normed = F.rms_norm(expected, (width,), weight, EPSILON).to(dtype)
    torch.testing.assert_close(out, normed, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_norm_without_addition_leaves_the_stream_alone() -> None:
    stream, weight = torch.randn(2, 64), torch.randn(64)
    before = stream.clone()
    out = add_norm(stream, weight, torch.empty(2, 64), EPSILON)
    assert torch.equal(stream, before)
    torch.testing.assert_close(out, F.rms_norm(before, (64,), weight, EPSILON))


def rotated(case: Case, head_norm: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The queries and the layer as torch leaves them."""
    spec, batch, tokens = case.spec, case.batch, len(case.qkv)
    heads = case.qkv.clone().view(tokens, -1, spec.head_dim)
    turned = heads[:, : spec.heads + spec.kv_heads]
    if head_norm is not None:
        turned.copy_(F.rms_norm(turned.float(), (spec.head_dim,), None, EPSILON) * head_norm)
    frequencies = inverse_frequencies(spec.layers[0].rope, spec.head_dim)
    rotate_(turned, *rotation(torch.from_numpy(batch.positions), frequencies, case.qkv.dtype))
    layer = case.pool.data[0].clone()
    size = case.pool.page_size
    for token, cell in enumerate(batch.cells.tolist()):
        layer[cell // size, :, cell % size] = heads[token, spec.heads :]
    return heads[:, : spec.heads].reshape(tokens, -1), layer


def run_rotation(case: Case, step: Step, head_norm: torch.Tensor | None = None) -> torch.Tensor:
    spec = case.spec
    frequencies = inverse_frequencies(spec.layers[0].rope, spec.head_dim)
    rotate_and_write(
        case.qkv, case.pool.data[0], step, heads_of(spec), frequencies, head_norm=head_norm, epsilon=EPSILON
    )
    return case.qkv[:, : spec.heads * spec.head_dim]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    "shape", [{}, {"heads": 3, "kv_heads": 1, "head_dim": 24}, {"page_size": 4}], ids=str
)
def test_heads_are_turned_and_written_as_in_torch(
    dtype: torch.dtype, normed: bool, shape: dict[str, Any]
) -> None:
    case = make_case([(1, 40), (3, 20)], dtype=dtype, **shape)
    spec = case.spec
    head_norm = torch.randn(spec.heads + spec.kv_heads, spec.head_dim) if normed else None
    queries, layer = rotated(case, head_norm)
    found = run_rotation(case, build_step(case.batch, CPU, 16), head_norm)
    near = {"atol": 4 * TOLERANCE[dtype], "rtol": 4 * TOLERANCE[dtype]}
    torch.testing.assert_close(found, queries, **near)
    torch.testing.assert_close(case.pool.data[0], layer, equal_nan=True, **near)


def test_padding_writes_no_page() -> None:
    case = make_case([(1, 40), (1, 20)])
    case.batch.cells[:] = -1
    before = case.pool.data.clone()
    run_rotation(case, build_step(case.batch, CPU, 16))
    torch.testing.assert_close(case.pool.data, before, equal_nan=True, atol=0, rtol=0)


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("inner", [96, 2000])
def test_a_fused_feed_forward_part_is_that_of_torch(activation: str, inner: int) -> None:
    gate_up, down = make_linear(torch.randn(2 * inner, 32) / 6), make_linear(torch.randn(32, inner) / 30)
    x = torch.randn(3, 32)
    expected = Gated(gate_up, down, activation)(x)
    torch.testing.assert_close(FusedGated(gate_up, down, activation)(x), expected, atol=1e-5, rtol=1e-5)


def test_large_gates_overflow_nowhere() -> None:
    gate_up = torch.tensor([[1e4, -1e4, 200.0, -200.0, 1.0, 2.0, 3.0, 4.0]])
    for gelu in (False, True):
        assert gated(gate_up, gelu=gelu).tolist() == [[1e4, 0.0, 600.0, 0.0]]
