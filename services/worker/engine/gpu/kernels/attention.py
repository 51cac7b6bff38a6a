"""Attention that reads KV pages in place: one online softmax, for decoding rows and for prompt tiles.

The pool of a layer is [pages, 2 * KV_HEADS, PAGE, HEAD_DIM], keys before values. Nothing outside
[lowest, last) of a row is ever read, so free pages and unwritten positions may hold anything.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
UNSEEN: tl.constexpr = tl.constexpr(-1e30)
# The interpreter multiplies bfloat16 numbers as if their bits were integers.
_WIDENED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)

# Slices of what was sent in one piece: a kernel for each way in which they may be aligned would be compiled
# while somebody waits.
_ANYWHERE = ["tables_ptr", "contexts_ptr", "rows_ptr", "firsts_ptr", "starts_ptr", "counts_ptr"]


@triton.jit
def _product(left, right):
    if _WIDENED:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _capped(scores, CAP: tl.constexpr):
    # tanh by way of exp, which neither overflows nor needs a library.
    return CAP * (1 - 2 / (1 + tl.exp2(scores * (2 * LOG2_E / CAP))))


@triton.jit
def _attend(
    query,
    layer_ptr,
    table_ptr,
    kv_head,
    span,
    ends,
    scale,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """Attend [M, BLOCK_D] to positions [lowest, last) = span, of which query m sees those before ends[m].

    Returns the weighted values [M, BLOCK_D], and the base-2 logarithm of each query's weights.
    """
    lowest, last = span
    best = tl.full([query.shape[0]], UNSEEN, tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    out = tl.zeros(query.shape, tl.float32)
    dims = tl.arange(0, query.shape[1])
    for start in range(lowest // PAGE * PAGE, last, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        inside = (positions >= lowest) & (positions < last)
        page = tl.load(table_ptr + positions // PAGE, mask=inside, other=0).to(tl.int64)
        cell = (page * (2 * KV_HEADS) + kv_head) * PAGE + positions % PAGE
        at = cell[:, None] * HEAD_DIM + dims[None, :]
        wanted = inside[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(layer_ptr + at, mask=wanted, other=0.0)
        scores = _product(query, tl.trans(keys)) * scale
        if CAP > 0:
            scores = _capped(scores, CAP)
        seen = inside[None, :] & (positions[None, :] < ends[:, None])
        if WINDOW > 0:
            seen &= positions[None, :] >= ends[:, None] - WINDOW
        scores = tl.where(seen, scores * LOG2_E, UNSEEN)
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.load(layer_ptr + at + KV_HEADS * PAGE * HEAD_DIM, mask=wanted, other=0.0)
        out = out * shrink[:, None] + _product(weights.to(values.dtype), values)
        best = higher
    return out / total[:, None], best + tl.log2(total)


@triton.jit
def _split(context, split, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr):
    """The positions [first, last) of a split; the last of a row's splits may be left with fewer, or none."""
    lowest = tl.maximum(context - WINDOW, 0) if WINDOW > 0 else context * 0
    blocks = tl.cdiv(context - lowest, BLOCK_N)
    share = tl.maximum(tl.cdiv(blocks, SPLITS), 1) * BLOCK_N
    first = lowest + split * share
    return first, tl.minimum(first + share, context)


@triton.jit
def _heads(heads, there, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Where heads [M] lie within a token, and which of these numbers there are, both [M, BLOCK_D]."""
    dims = tl.arange(0, BLOCK_D)
    return heads[:, None] * HEAD_DIM + dims[None, :], there[:, None] & (dims < HEAD_DIM)[None, :]


@triton.jit
def _load(ptr, token, within, own, WIDTH: tl.constexpr):
    return tl.load(ptr + (token * WIDTH + within), mask=own, other=0.0)


@triton.jit
def _store(ptr, token, within, own, values, WIDTH: tl.constexpr):
    tl.store(ptr + (token * WIDTH + within), values.to(ptr.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=_ANYWHERE[:2])
def decode(
    query_ptr,
    layer_ptr,
    tables_ptr,
    contexts_ptr,
    out_ptr,
    parts_ptr,
    weights_ptr,
    table_stride,
    scale,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """One row's last token, one KV head with its SHARED query heads, one split of the context.

    Queries lie in [tokens, (heads + 2 * KV_HEADS) * HEAD_DIM], with keys and values that are not read here.
    With one split the result is final; else parts [rows, heads, SPLITS, HEAD_DIM] and the base-2 logarithm
    of their weights [rows, heads, SPLITS] are left to `reduce`. A row of context 0 is padding: it stays as
    it is.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    span = _split(context, split, BLOCK_N, SPLITS, WINDOW)
    if span[0] < context:
        token, shared = row.to(tl.int64), tl.arange(0, BLOCK_M)
        within, own = _heads(kv_head * SHARED + shared, shared < SHARED, HEAD_DIM, BLOCK_D)
        query = _load(query_ptr, token, within, own, KV_HEADS * (SHARED + 2) * HEAD_DIM)
        table = tables_ptr + token * table_stride
        ends = tl.zeros([BLOCK_M], tl.int32) + context
        out, weight = _attend(
            query, layer_ptr, table, kv_head, span, ends, scale, KV_HEADS, PAGE, HEAD_DIM, BLOCK_N, 0, CAP
        )
        if SPLITS == 1:
            _store(out_ptr, token, within, own, out, KV_HEADS * SHARED * HEAD_DIM)
        else:
            line = (token * (KV_HEADS * SHARED) + kv_head * SHARED + shared) * SPLITS + split
            _store(parts_ptr, line[:, None], tl.arange(0, BLOCK_D)[None, :], own, out, HEAD_DIM)
            tl.store(weights_ptr + line, weight, mask=shared < SHARED)


@triton.jit(do_not_specialize_on_alignment=["contexts_ptr"])
def reduce(
    parts_ptr,
    weights_ptr,
    contexts_ptr,
    out_ptr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Join the splits of one row and head."""
    row, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts_ptr + row)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
    first, _ = _split(context, splits, BLOCK_N, SPLITS, WINDOW)
    used = first < context
    line = row.to(tl.int64) * tl.num_programs(1) + head
    logs = tl.load(weights_ptr + line * SPLITS + splits, mask=used, other=UNSEEN)
    weights = tl.exp2(logs - tl.max(logs, 0))
    within, own = _heads(splits, used, HEAD_DIM, BLOCK_D)
    parts = _load(parts_ptr, line, within, own, SPLITS * HEAD_DIM)
    out = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    at = line * HEAD_DIM + dims
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=_ANYWHERE)
def prefill(
    query_ptr,
    layer_ptr,
    tables_ptr,
    rows_ptr,
    firsts_ptr,
    starts_ptr,
    counts_ptr,
    contexts_ptr,
    out_ptr,
    table_stride,
    scale,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """One tile: BLOCK_M // SHARED tokens of one row, with the SHARED query heads of one KV head.

    Tile t begins at token `firsts[t]` of row `rows[t]`, whose tokens begin at `starts[row]` of the batch.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row, first = tl.load(rows_ptr + tile), tl.load(firsts_ptr + tile)
    count = tl.load(counts_ptr + row)
    before = tl.load(contexts_ptr + row) - count
    lines = tl.arange(0, BLOCK_M)
    QUERIES: tl.constexpr = BLOCK_M // SHARED
    offset = first + lines // SHARED
    token = (tl.load(starts_ptr + row) + offset).to(tl.int64)[:, None]
    inside = (lines < QUERIES * SHARED) & (offset < count)
    within, own = _heads(kv_head * SHARED + lines % SHARED, inside, HEAD_DIM, BLOCK_D)
    query = _load(query_ptr, token, within, own, KV_HEADS * (SHARED + 2) * HEAD_DIM)
    table = tables_ptr + row.to(tl.int64) * table_stride
    lowest = tl.maximum(before + first + 1 - WINDOW, 0) if WINDOW > 0 else first * 0
    span, ends = (lowest, before + tl.minimum(first + QUERIES, count)), before + offset + 1
    out, _ = _attend(
        query, layer_ptr, table, kv_head, span, ends, scale, KV_HEADS, PAGE, HEAD_DIM, BLOCK_N, WINDOW, CAP
    )
    _store(out_ptr, token, within, own, out, KV_HEADS * SHARED * HEAD_DIM)
