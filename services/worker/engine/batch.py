"""One step's rows as flat arrays, and the seam that a faster forward replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from services.worker.engine.slots import SlotTable

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of all rows, one row after the other: first the rows of one token, longest context first.

    token_ids, positions, cells: [tokens]; a cell is where a token's KV goes: page * page_size + offset.
    counts, contexts: [rows]: tokens of the row in this step, and up to and including this step.
    page_tables: [rows, pages of the longest context]; entries beyond a row's own context name the pool's
    blank page. sampled: index into `token_ids` of each token after which one is drawn.
    wanted: [sampled]: whether more than the likeliest token is asked of the logits; of all, where it is None.
    """

    token_ids: Ints
    positions: Ints
    cells: Ints
    counts: Ints
    contexts: Ints
    page_tables: Ints
    sampled: Ints
    wanted: Bools | None = None


class Pool(Protocol):
    """The KV pages, as far as a runner cares."""

    data: torch.Tensor

    @property
    def page_size(self) -> int:
        """Tokens a page holds."""
        ...

    @property
    def page_count(self) -> int:
        """Pages, numbered from 0."""
        ...

    def blank(self, pages: Ints, first: int = 0) -> None:
        """Make positions `first` and later of pages safe to read before they are written."""
        ...

    def fill(self, pages: Ints, first: int, value: float) -> None:
        """Set positions `first` and later of pages, in all layers."""
        ...


class Forward(Protocol):
    """The model: writes the KV of every token of a batch into the pool's pages."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the sampled tokens, [sampled, vocabulary]; rows not wanted may hold none."""
        ...


def row_order(table: SlotTable, slots: Ints, counts: Ints) -> Ints:
    """Order rows as `Batch` wants them."""
    contexts = table.computed[slots] + counts
    return np.lexsort((-contexts, counts > 1))


def build_batch(table: SlotTable, slots: Ints, counts: Ints) -> Batch:
    """Gather the rows' tokens and page tables; `slots` in the order that `row_order` gives."""
    start = table.computed[slots]
    contexts = start + counts
    row = np.repeat(np.arange(len(slots)), counts)
    ends = np.cumsum(counts)
    positions = np.arange(len(row)) - np.repeat(ends - counts - start, counts)
    size = table.page_size
    width = -(-int(contexts.max()) // size)
    own = np.arange(width) < -(-contexts // size)[:, None]
    sampled = contexts == table.known[slots]
    page_tables = np.where(own, table.pages[slots, :width], table.page_count).astype(np.int64)
    return Batch(
        token_ids=table.tokens[slots[row], positions].astype(np.int64),
        positions=positions,
        cells=page_tables[row, positions // size] * size + positions % size,
        counts=counts,
        contexts=contexts,
        page_tables=page_tables,
        sampled=(ends - 1)[sampled],
        wanted=table.wanted(slots[sampled]),
    )
