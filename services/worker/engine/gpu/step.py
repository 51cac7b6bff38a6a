"""One step's numbers on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from services.worker.engine.batch import Batch, Ints


@dataclass(frozen=True, slots=True)
class Tiles:
    """Pieces of prompts: each tile's row and first token in it; each row's first token and count of them."""

    rows: torch.Tensor
    firsts: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """A batch as the kernels read it, all of int32; the first `singles` rows have one token each.

    sampled is None where every token is. A token whose cell is below 0, in a row of context 0, is padding.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    cells: torch.Tensor
    contexts: torch.Tensor
    page_tables: torch.Tensor
    singles: int
    sampled: torch.Tensor | None = None
    tiles: Tiles | None = None


def send(values: Ints, device: torch.device) -> torch.Tensor:
    """Send whole numbers as int32, without waiting for them to arrive."""
    tensor = torch.from_numpy(values.astype(np.int32))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def build_step(batch: Batch, device: torch.device, queries: int) -> Step:
    """Send a batch of any rows; `queries` are the tokens that one tile of a prompt has."""
    singles = int((batch.counts == 1).sum())
    tokens = send(np.stack((batch.token_ids, batch.positions, batch.cells)), device)
    everything = len(batch.sampled) == len(batch.token_ids)
    return Step(
        token_ids=tokens[0],
        positions=tokens[1],
        cells=tokens[2],
        contexts=send(batch.contexts, device),
        page_tables=send(batch.page_tables, device),
        singles=singles,
        sampled=None if everything else send(batch.sampled, device),
        tiles=_tiles(batch, device, singles, queries) if singles < len(batch.counts) else None,
    )


def _tiles(batch: Batch, device: torch.device, singles: int, queries: int) -> Tiles:
    counts = batch.counts.copy()
    counts[:singles] = 0
    per_row = -(-counts // queries)
    rows = np.repeat(np.arange(len(counts)), per_row)
    firsts = (np.arange(len(rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)) * queries
    # What reads most begins first.
    order = np.argsort(-(batch.contexts[rows] - counts[rows] + firsts), kind="stable")
    starts = np.cumsum(batch.counts) - batch.counts
    pieces = send(np.stack((rows[order], firsts[order])), device)
    ranges = send(np.stack((starts, batch.counts)), device)
    return Tiles(pieces[0], pieces[1], ranges[0], ranges[1])
