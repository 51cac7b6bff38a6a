"""Random steps over a page pool, as the torch reference and the kernels see them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from services.worker.engine.attention import attend, plan_groups
from services.worker.engine.batch import Batch
from services.worker.engine.kv import PagePool
from services.worker.engine.rope import RopeSpec
from services.worker.engine.spec import Dense, LayerSpec, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

SPEC = ModelSpec(
    vocab_size=64,
    hidden_size=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    layers=(LayerSpec(RopeSpec(10_000.0), Dense(64)),),
    norm_eps=1e-5,
    context_length=512,
    tied_head=True,
    activation="silu",
    attention_scale=0.3,
)


@dataclass
class Case:
    """One layer's pool, NaN wherever no row has a written position, and a step's rows over it."""

    spec: ModelSpec
    pool: PagePool
    batch: Batch
    qkv: torch.Tensor

    def expected(self, window: int | None = None) -> torch.Tensor:
        """What the torch reference attends: it needs unwritten positions to hold numbers."""
        spec = self.spec
        clean = PagePool(spec, self.pool.page_count, self.pool.page_size, self.pool.data.dtype, "cpu")
        clean.data.copy_(self.pool.data.nan_to_num(0.0))
        queries = self.qkv.view(len(self.qkv), -1, spec.head_dim)[:, : spec.heads]
        groups = plan_groups(self.batch, clean, spec.heads // spec.kv_heads, window)
        return attend(queries, clean, 0, groups, scale=spec.attention_scale, cap=spec.attention_cap)


def make_case(
    rows: Sequence[tuple[int, int]], *, page_size: int = 16, dtype: torch.dtype = torch.float32, **spec: Any
) -> Case:
    """Rows of (tokens in this step, context with them), in the order that a batch has; pages in any order."""
    own = replace(SPEC, **spec)
    random = np.random.default_rng(len(rows) * page_size)
    counts, contexts = np.array(rows).T
    widths = -(-contexts // page_size)
    count = int(widths.sum()) + 3
    order = random.permutation(count)
    tables = np.full((len(rows), widths.max()), count)
    for row, (width, end) in enumerate(zip(widths, np.cumsum(widths), strict=True)):
        tables[row, :width] = order[end - width : end]
    pool = PagePool(own, count, page_size, dtype, "cpu")
    pool.data.fill_(torch.nan)
    pool.data[:, count] = 0
    torch.manual_seed(count)
    for row, context in enumerate(contexts):
        for position in range(context):
            cell = pool.data[:, tables[row, position // page_size], :, position % page_size]
            cell.copy_(torch.randn(cell.shape))
    positions = np.concatenate([np.arange(end - n, end) for n, end in zip(counts, contexts, strict=True)])
    row_of = np.repeat(np.arange(len(rows)), counts)
    batch = Batch(
        token_ids=random.integers(0, own.vocab_size, len(positions)),
        positions=positions,
        cells=tables[row_of, positions // page_size] * page_size + positions % page_size,
        counts=counts,
        contexts=contexts,
        page_tables=tables,
        sampled=np.cumsum(counts) - 1,
    )
    qkv = torch.randn(len(positions), (own.heads + 2 * own.kv_heads) * own.head_dim).to(dtype)
    return Case(own, pool, batch, qkv)
