"""Compiling, at load, every kernel that a step may need: one that is compiled later holds up a whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from services.worker.engine.batch import Batch
from services.worker.engine.gpu.attention import splits_for
from services.worker.engine.gpu.graphs import sizes_up_to
from services.worker.engine.noise import row_keys
from services.worker.engine.sampling import Draws

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.worker.engine.gpu.sampler import GpuSampler

_PROMPT = 17


@torch.inference_mode()
def warm(forward: Callable[[Batch], torch.Tensor], sampler: GpuSampler, *, slots: int, kv_heads: int) -> None:
    """Run a prompt beside as many decoding rows as make a difference, and draw in every way."""
    by_splits = {splits_for(rows, kv_heads): rows for rows in sizes_up_to(slots)}
    for rows in by_splits.values():
        logits = forward(_batch(rows))
    for top_p in (1.0, 0.9):
        sampler(logits, _draws(len(logits), top_p))


def _batch(rows: int) -> Batch:
    """Rows of one token and a prompt, all padding: no page is written."""
    counts = np.append(np.ones(rows, np.int64), _PROMPT)
    tokens = np.zeros(rows + _PROMPT, np.int64)
    return Batch(
        token_ids=tokens,
        positions=tokens,
        cells=tokens - 1,
        counts=counts,
        contexts=counts,
        page_tables=np.zeros((rows + 1, _PROMPT), np.int64),
        sampled=np.cumsum(counts) - 1,
    )


def _draws(rows: int, top_p: float) -> Draws:
    zeros = np.zeros(rows, np.int64)
    return Draws(
        temperature=np.ones(rows),
        top_k=zeros,
        top_p=np.full(rows, top_p),
        min_p=np.zeros(rows),
        top_logprobs=zeros,
        keys=row_keys(zeros, zeros, np.arange(rows)),
    )
