"""The activation of the gate, times up."""

import triton
import triton.language as tl


@triton.jit
def gated(
    gate_up_ptr,
    out_ptr,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
):
    """[tokens, 2 * INNER] -> [tokens, INNER]: SiLU, or GELU by its tanh formula."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < INNER
    at = token * (2 * INNER) + columns
    gate = tl.load(gate_up_ptr + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + at + INNER, mask=mask, other=0.0).to(tl.float32)
    # Both are x * sigmoid(y): GELU's half of 1 + tanh(z) is the sigmoid of 2 z.
    steep = gate
    if GELU:
        steep = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    value = gate / (1 + tl.exp(-steep)) * up
    tl.store(out_ptr + token * INNER + columns, value.to(out_ptr.dtype.element_ty), mask=mask)
