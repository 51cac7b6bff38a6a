"""Attention through page tables in plain torch: rows of like length are gathered and computed together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from services.worker.engine.batch import Batch, Ints
    from services.worker.engine.kv import PagePool

# What one more group costs, in pages gathered and attended to (measured: about 60 us against 1.3 us a page).
_GROUP_PAGES = 45
_MASKED = -1e30


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of equal token count whose contexts are padded to one length, with room for one layer's pages.

    pages: [rows * width]; mask, added to the scores: [rows, 1, 1 or queries, width * page_size];
    gathered: [rows * width, numbers in a page]; kv: [rows, 2 * kv_heads, width, page_size, head_dim].
    """

    tokens: slice
    pages: torch.Tensor
    mask: torch.Tensor
    gathered: torch.Tensor
    kv: torch.Tensor


def plan_groups(
    batch: Batch, pool: PagePool, queries_per_kv_head: int, window: int | None = None
) -> list[Group]:
    """Cut a batch into groups, once for all layers of one window."""
    if window is not None:
        batch = _inside(batch, pool, window)
    widths = -(-batch.contexts // pool.page_size)
    singles = int((batch.counts == 1).sum())
    bounds = [*_cut(widths[:singles]), *range(singles, len(widths) + 1)]
    rows = [slice(first, last) for first, last in itertools.pairwise(bounds)]
    return [_plan_group(batch, pool, queries_per_kv_head, window, group) for group in rows]


def _inside(batch: Batch, pool: PagePool, window: int) -> Batch:
    """Cut off each row's pages that lie before the window of its first token: they are not read at all."""
    first = np.maximum(batch.contexts - batch.counts - window + 1, 0) // pool.page_size
    contexts = batch.contexts - first * pool.page_size
    columns = first[:, None] + np.arange(-(-int(contexts.max()) // pool.page_size))
    most = batch.page_tables.shape[1] - 1
    tables = np.take_along_axis(batch.page_tables, np.minimum(columns, most), 1)
    return replace(batch, contexts=contexts, page_tables=np.where(columns > most, pool.page_count, tables))


def _plan_group(
    batch: Batch, pool: PagePool, queries_per_kv_head: int, window: int | None, rows: slice
) -> Group:
    contexts, counts = batch.contexts[rows], batch.counts[rows]
    width = -(-int(contexts.max()) // pool.page_size)
    pages = torch.from_numpy(batch.page_tables[rows, :width].copy()).to(pool.data.device)
    hidden = _hidden(contexts, int(counts[0]), width * pool.page_size, window)
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, _MASKED)
    mask = mask[:, None] if counts[0] == 1 else mask.repeat(1, queries_per_kv_head, 1)[:, None]
    start = int(batch.counts[: rows.start].sum())
    # On a CPU the products run in float32 whatever the pages hold: small bfloat16 ones take twice as long.
    working = torch.float32 if pool.data.device.type == "cpu" else pool.data.dtype
    return Group(
        tokens=slice(start, start + int(counts.sum())),
        pages=pages.view(-1),
        mask=mask.to(device=pages.device, dtype=working),
        gathered=pool.data.new_empty(pages.numel(), pool.layers[0].shape[1]),
        kv=pool.data.new_empty((len(counts), 2 * pool.kv_heads, width, *pool.data.shape[-2:]), dtype=working),
    )


def _cut(widths: Ints) -> list[int]:
    """Cut rows, longest first, where the padding saved outweighs one more group; first row of each."""
    firsts: list[int] = []
    for row, width in enumerate(widths.tolist()):
        if not firsts or (widths[firsts[-1]] - width) * (len(widths) - row) > _GROUP_PAGES:
            firsts.append(row)
    return firsts


def _hidden(contexts: Ints, count: int, width: int, window: int | None) -> torch.Tensor:
    """Whether a key is none of a query's: [rows, queries, width]."""
    ends = (torch.from_numpy(contexts)[:, None] - torch.arange(count - 1, -1, -1))[:, :, None]
    keys = torch.arange(width)
    hidden = keys >= ends
    return hidden if window is None else hidden | (keys < ends - window)


def attend(
    queries: torch.Tensor, pool: PagePool, layer: int, groups: list[Group], *, scale: float, cap: float | None
) -> torch.Tensor:
    """Attend [tokens, heads, head_dim] to the pages of each row: [tokens, heads * head_dim].

    A score is `scale` times a product, and c * tanh(score / c) where there is a cap c.
    """
    pages = pool.layers[layer]
    parts = [_attend_group(queries[group.tokens], pages, group, scale, cap) for group in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_group(
    queries: torch.Tensor, pages: torch.Tensor, group: Group, scale: float, cap: float | None
) -> torch.Tensor:
    """The queries that share a KV head lie side by side as rows of one product, so nothing is repeated."""
    rows, twice_kv_heads, width, page_size, head_dim = group.kv.shape
    kv_heads = twice_kv_heads // 2
    torch.index_select(pages, 0, group.pages, out=group.gathered)
    by_page = group.gathered.view(rows, width, twice_kv_heads, page_size, head_dim)
    group.kv.copy_(by_page.transpose(1, 2))
    kv = group.kv.view(rows, twice_kv_heads, width * page_size, head_dim)
    own = queries.to(kv.dtype).view(rows, -1, kv_heads, queries.shape[1] // kv_heads, head_dim)
    _, count, _, shared, _ = own.shape
    own = own.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, shared * count, head_dim)
    keys, values = kv[:, :kv_heads], kv[:, kv_heads:]
    if cap is None:
        out = F.scaled_dot_product_attention(own, keys, values, attn_mask=group.mask, scale=scale)
    else:
        scores = (own @ keys.transpose(2, 3)).mul_(scale / cap).tanh_().mul_(cap)
        out = scores.add_(group.mask).softmax(-1) @ values
    out = out.view(rows, kv_heads, shared, count, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * count, -1).to(queries.dtype)
