"""Attention through page tables in plain torch: rows of like length are gathered and computed together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


def plan_groups(batch: Batch, pool: PagePool, queries_per_kv_head: int) -> list[Group]:
    """Cut a batch into groups, once for all layers."""
    widths = -(-batch.contexts // pool.page_size)
    singles = int((batch.counts == 1).sum())
    bounds = [*_cut(widths[:singles]), *range(singles, len(widths) + 1)]
    rows = [slice(first, last) for first, last in itertools.pairwise(bounds)]
    return [_plan_group(batch, pool, queries_per_kv_head, group) for group in rows]


def _plan_group(batch: Batch, pool: PagePool, queries_per_kv_head: int, rows: slice) -> Group:
    contexts, counts = batch.contexts[rows], batch.counts[rows]
    width = -(-int(contexts.max()) // pool.page_size)
    pages = torch.from_numpy(batch.page_tables[rows, :width].copy()).to(pool.data.device)
    mask = _mask(contexts, int(counts[0]), width * pool.page_size, queries_per_kv_head)
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


def _mask(contexts: Ints, count: int, width: int, queries_per_kv_head: int) -> torch.Tensor:
    ends = torch.from_numpy(contexts)[:, None] - torch.arange(count - 1, -1, -1)
    hidden = torch.arange(width) >= ends[:, :, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, _MASKED)
    return mask[:, None] if count == 1 else mask.repeat(1, queries_per_kv_head, 1)[:, None]


def attend(queries: torch.Tensor, pool: PagePool, layer: int, groups: list[Group]) -> torch.Tensor:
    """Attend [tokens, heads, head_dim] to the pages of each row: [tokens, heads * head_dim]."""
    parts = [_attend_group(queries[group.tokens], pool.layers[layer], group) for group in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_group(queries: torch.Tensor, pages: torch.Tensor, group: Group) -> torch.Tensor:
    """The queries that share a KV head lie side by side as rows of one product, so nothing is repeated."""
    rows, twice_kv_heads, width, page_size, head_dim = group.kv.shape
    kv_heads = twice_kv_heads // 2
    torch.index_select(pages, 0, group.pages, out=group.gathered)
    by_page = group.gathered.view(rows, width, twice_kv_heads, page_size, head_dim)
    group.kv.copy_(by_page.transpose(1, 2))
    kv = group.kv.view(rows, twice_kv_heads, width * page_size, head_dim)
    own = queries.to(kv.dtype).view(rows, -1, kv_heads, queries.shape[1] // kv_heads, head_dim)
    _, count, _, shared, _ = own.shape
    out = F.scaled_dot_product_attention(
        own.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, shared * count, head_dim),
        kv[:, :kv_heads],
        kv[:, kv_heads:],
        attn_mask=group.mask,
        scale=head_dim**-0.5,
    )
    out = out.view(rows, kv_heads, shared, count, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * count, -1).to(queries.dtype)
