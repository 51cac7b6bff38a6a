"""Random steps over a page pool, as the torch reference and the kernels see them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from services.worker.engine.attention import attend, plan_groups
from services.worker.engine.batch import Batch
from services.worker.engine.gpu.attention import Heads
from services.worker.engine.kv import PagePool
from services.worker.engine.rope import RopeSpec
from services.worker.engine.spec import Dense, LayerSpec, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

TINY = ModelSpec(
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


class Shape(TypedDict, total=False):
    """What a case may have of its own."""

    heads: int
    kv_heads: int
    head_dim: int
    attention_scale: float
    attention_cap: float | None


def heads_of(spec: ModelSpec) -> Heads:
    """The shape of a model's attention."""
    return Heads(spec.heads, spec.kv_heads, spec.head_dim, spec.attention_scale, spec.attention_cap or 0.0)


@dataclass
class Case:
    """A pool, NaN wherever no row has a written position, and a step over it; qkv: [tokens, all heads]."""

    spec: ModelSpec
    pool: PagePool
    batch: Batch
    qkv: torch.Tensor

    def expected(self, window: int | None = None) -> torch.Tensor:
        """What the torch reference attends in the first layer; it needs numbers at unwritten positions."""
        spec, pool = self.spec, self.pool
        clean = PagePool(spec, pool.page_count, pool.page_size, pool.data.dtype, str(pool.data.device))
        clean.data.copy_(pool.data.nan_to_num(0.0))
        queries = self.qkv.view(len(self.qkv), -1, spec.head_dim)[:, : spec.heads]
        groups = plan_groups(self.batch, clean, spec.heads // spec.kv_heads, window)
        # A GPU's faster ways round float32 numbers.
        with sdpa_kernel(SDPBackend.MATH):
            return attend(queries, clean, 0, groups, scale=spec.attention_scale, cap=spec.attention_cap)


def make_case(
    rows: Sequence[tuple[int, int]],
    *,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **shape: Unpack[Shape],
) -> Case:
    """Rows of (tokens in this step, context with them), in the order that a batch has; pages in any order."""
    own = replace(TINY, **shape)
    batch, page_count = make_batch(rows, page_size, own.vocab_size, seed=page_size)
    pool = PagePool(own, page_count, page_size, dtype, device)
    written = np.zeros((page_count + 1, page_size), bool)
    for table, context in zip(batch.page_tables, batch.contexts, strict=True):
        positions = np.arange(context)
        written[table[positions // page_size], positions % page_size] = True
    torch.manual_seed(page_count)
    pool.data.copy_(torch.randn(pool.data.shape))
    page, offset = (torch.from_numpy(index).to(device) for index in np.nonzero(~written))
    pool.data[:, page, :, offset] = torch.nan
    pool.data[:, page_count] = 0
    qkv = torch.randn(len(batch.positions), (own.heads + 2 * own.kv_heads) * own.head_dim)
    return Case(own, pool, batch, qkv.to(device, dtype))


def make_batch(
    rows: Sequence[tuple[int, int]], page_size: int, vocabulary: int, *, seed: int, spare: int = 3
) -> tuple[Batch, int]:
    """Rows as `make_case`, and how many pages there are for them, `spare` ones included."""
    random = np.random.default_rng(seed)
    counts, contexts = np.array(rows).T
    widths = -(-contexts // page_size)
    page_count = int(widths.sum()) + spare
    order = random.permutation(page_count)
    tables = np.full((len(rows), widths.max()), page_count)
    for row, (width, end) in enumerate(zip(widths, np.cumsum(widths), strict=True)):
        tables[row, :width] = order[end - width : end]
    spans = [np.arange(end - count, end) for count, end in zip(counts, contexts, strict=True)]
    positions, row_of = np.concatenate(spans), np.repeat(np.arange(len(rows)), counts)
    batch = Batch(
        token_ids=random.integers(0, vocabulary, len(positions)),
        positions=positions,
        cells=tables[row_of, positions // page_size] * page_size + positions % page_size,
        counts=counts,
        contexts=contexts,
        page_tables=tables,
        sampled=np.cumsum(counts) - 1,
    )
    return batch, page_count
