"""Head norms, rotation and the KV write of one token's heads."""

import triton
import triton.language as tl


@triton.jit
def _normed(left, right, head_norm_ptr, own, turned, mask, epsilon, HEAD_DIM: tl.constexpr):
    """Both halves of every head that is turned, over its root mean square and times its weights."""
    mean = (tl.sum(left * left, 1) + tl.sum(right * right, 1)) / HEAD_DIM
    shrink = tl.where(turned, 1 / tl.sqrt(mean + epsilon)[:, None], 1.0)
    normed = mask & turned
    left *= shrink * tl.load(head_norm_ptr + own, mask=normed, other=1.0)
    right *= shrink * tl.load(head_norm_ptr + own + HEAD_DIM // 2, mask=normed, other=1.0)
    return left, right


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "cells_ptr"])
def rotate_and_write(
    qkv_ptr,
    positions_ptr,
    cells_ptr,
    frequencies_ptr,
    head_norm_ptr,
    layer_ptr,
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    NORMS: tl.constexpr,
):
    """Queries are turned in place; keys, turned, and values go to the token's cell, if it has one.

    Dimension d of the first half turns with d of the second. A cell below 0 belongs to padding.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    heads, dims = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_HALF)
    mask = (heads < HEADS + 2 * KV_HEADS)[:, None] & (dims < HALF)[None, :]
    turned = (heads < HEADS + KV_HEADS)[:, None]
    own = heads[:, None] * HEAD_DIM + dims[None, :]
    source = qkv_ptr + token * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + own
    left = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORMS:
        left, right = _normed(left, right, head_norm_ptr, own, turned, mask, epsilon, HEAD_DIM)
    angle = tl.load(positions_ptr + token).to(tl.float32) * tl.load(
        frequencies_ptr + dims, mask=dims < HALF, other=0.0
    )
    cos = tl.where(turned, tl.cos(angle)[None, :], 1.0)
    sin = tl.where(turned, tl.sin(angle)[None, :], 0.0)
    first = (left * cos - right * sin).to(qkv_ptr.dtype.element_ty)
    second = (right * cos + left * sin).to(qkv_ptr.dtype.element_ty)
    query = mask & (heads < HEADS)[:, None]
    tl.store(source, first, mask=query)
    tl.store(source + HALF, second, mask=query)
    cell = tl.load(cells_ptr + token).to(tl.int64)
    if cell >= 0:
        run = (cell // PAGE * (2 * KV_HEADS) + heads - HEADS) * PAGE + cell % PAGE
        target = layer_ptr + run[:, None] * HEAD_DIM + dims[None, :]
        kept = mask & (heads >= HEADS)[:, None]
        tl.store(target, first, mask=kept)
        tl.store(target + HALF, second, mask=kept)
