"""RMSNorm with the residual addition before it."""

import triton
import triton.language as tl


@triton.jit
def _rms(x, epsilon, WIDTH: tl.constexpr):
    return x / tl.sqrt(tl.sum(x * x, 0) / WIDTH + epsilon)


@triton.jit
def add_norm(
    stream_ptr,
    addend_ptr,
    addend_norm_ptr,
    norm_ptr,
    out_ptr,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
    NORMS_ADDEND: tl.constexpr,
):
    """One token: stream += addend, itself normed first where its norm is given; out = norm(stream)."""
    columns = tl.arange(0, BLOCK)
    mask = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    x = tl.load(stream_ptr + at, mask=mask, other=0.0)
    if ADDS:
        addend = tl.load(addend_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if NORMS_ADDEND:
            weight = tl.load(addend_norm_ptr + columns, mask=mask, other=0.0)
            addend = _rms(addend, epsilon, WIDTH) * weight
        x += addend
        tl.store(stream_ptr + at, x, mask=mask)
    weight = tl.load(norm_ptr + columns, mask=mask, other=0.0)
    normed = _rms(x, epsilon, WIDTH) * weight
    tl.store(out_ptr + at, normed.to(out_ptr.dtype.element_ty), mask=mask)
