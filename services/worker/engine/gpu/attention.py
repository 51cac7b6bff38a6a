"""How paged attention is launched: which rows go to which kernel, in how many splits and tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from services.worker.engine.gpu.kernels import attention as kernels

if TYPE_CHECKING:
    from services.worker.engine.gpu.step import Step

# tl.dot takes no fewer rows, nor fewer dimensions.
_LEAST = 16
# Programs that a decode launch aims at: four for each multiprocessor of an H200.
_PROGRAMS = 528
_MOST_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes of blocks, and how each is run; what is read at once is `keys` positions."""

    keys: int
    lines: int
    warps: int
    stages: int


DECODE = Tuning(keys=64, lines=_LEAST, warps=4, stages=3)
PREFILL = Tuning(keys=64, lines=128, warps=8, stages=3)
# Twice the bytes: less of it fits.
PREFILL_FLOAT32 = Tuning(keys=32, lines=32, warps=4, stages=2)


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a model's attention; a score is `scale` times a product, then capped where cap > 0."""

    count: int
    kv_count: int
    dim: int
    scale: float
    cap: float

    @property
    def shared(self) -> int:
        """Query heads that share a KV head."""
        return self.count // self.kv_count

    def blocks(self, tuning: Tuning) -> dict[str, int]:
        """The sizes that a kernel is compiled for."""
        return {
            "KV_HEADS": self.kv_count,
            "SHARED": self.shared,
            "HEAD_DIM": self.dim,
            "BLOCK_M": max(tuning.lines, power_of_two(self.shared)),
            "BLOCK_D": max(_LEAST, power_of_two(self.dim)),
            "BLOCK_N": tuning.keys,
        }


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << max(least - 1, 0).bit_length()


def prefill_tuning(*, float32: bool) -> Tuning:
    """The sizes for prompts in a precision."""
    return PREFILL_FLOAT32 if float32 else PREFILL


def tile_queries(heads: Heads, tuning: Tuning) -> int:
    """Tokens in one tile of a prompt."""
    return max(tuning.lines, power_of_two(heads.shared)) // heads.shared


def splits_for(rows: int, kv_heads: int) -> int:
    """In how many parts each row's context is read, so that few rows keep the whole chip busy."""
    return min(power_of_two(-(-_PROGRAMS // (rows * kv_heads))), _MOST_SPLITS)


def attend(qkv: torch.Tensor, layer: torch.Tensor, step: Step, heads: Heads, window: int) -> torch.Tensor:
    """Attend the queries in [tokens, (heads + 2 * kv_heads) * head_dim] to a layer's pages, read in place.

    layer: [pages, 2 * kv_heads, page_size, head_dim]; window 0 is none. Returns [tokens, heads * head_dim].
    """
    out = qkv.new_empty(len(qkv), heads.count * heads.dim)
    if step.singles:
        decode(qkv, layer, step, heads, window=window, out=out)
    if step.tiles is not None:
        tuning = prefill_tuning(float32=qkv.dtype == torch.float32)
        prefill(qkv, layer, step, heads, window=window, out=out, tuning=tuning)
    return out


def decode(
    qkv: torch.Tensor,
    layer: torch.Tensor,
    step: Step,
    heads: Heads,
    *,
    window: int,
    out: torch.Tensor,
    tuning: Tuning = DECODE,
    splits: int | None = None,
) -> None:
    """Attend the step's rows of one token, which come first."""
    rows, page = step.singles, layer.shape[2]
    splits = splits or splits_for(rows, heads.kv_count)
    parts = weights = out
    if splits > 1:
        parts = torch.empty(rows, heads.count, splits, heads.dim, dtype=torch.float32, device=out.device)
        weights = torch.empty(rows, heads.count, splits, dtype=torch.float32, device=out.device)
    kernels.decode[(rows, heads.kv_count, splits)](
        qkv,
        layer,
        step.page_tables,
        step.contexts,
        out,
        parts,
        weights,
        step.page_tables.stride(0),
        heads.scale,
        PAGE=page,
        SPLITS=splits,
        WINDOW=window,
        CAP=heads.cap,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **heads.blocks(tuning),
    )
    if splits > 1:
        kernels.reduce[(rows, heads.count)](
            parts,
            weights,
            step.contexts,
            out,
            HEAD_DIM=heads.dim,
            BLOCK_D=power_of_two(heads.dim),
            BLOCK_N=tuning.keys,
            SPLITS=splits,
            WINDOW=window,
        )


def prefill(
    qkv: torch.Tensor,
    layer: torch.Tensor,
    step: Step,
    heads: Heads,
    *,
    window: int,
    out: torch.Tensor,
    tuning: Tuning,
) -> None:
    """Attend the step's tiles: all rows of more than one token."""
    tiles = step.tiles
    assert tiles is not None
    kernels.prefill[(len(tiles.rows), heads.kv_count)](
        qkv,
        layer,
        step.page_tables,
        tiles.rows,
        tiles.firsts,
        tiles.starts,
        tiles.counts,
        step.contexts,
        out,
        step.page_tables.stride(0),
        heads.scale,
        PAGE=layer.shape[2],
        WINDOW=window,
        CAP=heads.cap,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **heads.blocks(tuning),
    )
