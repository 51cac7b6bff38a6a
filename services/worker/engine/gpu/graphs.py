"""Decode steps recorded once for a few numbers of rows, and replayed with fewer rows as padding."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import torch

from services.worker.engine.gpu.step import Step, send

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.worker.engine.batch import Batch

    Run = Callable[[], None]
    Capture = Callable[[Run], Run]

_SMALL, _STRIDE, _MOST = (1, 2, 4, 8), 16, 256
_PADDING = np.array([[0], [0], [-1], [0]])


def sizes_up_to(rows: int) -> tuple[int, ...]:
    """The numbers of rows to record, so that steps of up to `rows` rows (256 at most) find one."""
    sizes = (*_SMALL, *range(_STRIDE, _MOST + 1, _STRIDE))
    return sizes[: bisect_left(sizes, min(rows, _MOST)) + 1]


class CudaCapture:
    """Records what is launched into CUDA graphs; as they never run at once, they share their memory."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Return what repeats `run`; it runs once before, so that kernels are compiled."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            run()
        return graph.replay


class DecodeGraphs:
    """The recorded steps of one forward, and the memory that they read and write."""

    def __init__(
        self,
        forward: Callable[[Step], torch.Tensor],
        sizes: Sequence[int],
        *,
        table_width: int,
        vocabulary: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._sizes = sizes
        self._device = device
        most = sizes[-1]
        # Token, position, cell and context of each row.
        self._numbers = torch.tensor(_PADDING.repeat(most, 1), dtype=torch.int32, device=device)
        self._tables = torch.zeros(most, table_width, dtype=torch.int32, device=device)
        self._logits = torch.empty(most, vocabulary, dtype=torch.float32, device=device)
        # The largest first: the others then find its memory free.
        self._replays = {size: capture(self._run(forward, size)) for size in reversed(sizes)}

    def _run(self, forward: Callable[[Step], torch.Tensor], size: int) -> Run:
        token_ids, positions, cells, contexts = self._numbers[:, :size]
        step = Step(token_ids, positions, cells, contexts, self._tables[:size], singles=size)
        logits = self._logits[:size]

        def run() -> None:
            logits.copy_(forward(step))

        return run

    def fits(self, batch: Batch) -> bool:
        """Whether every row decodes one token that is sampled, and there is a size for them."""
        rows = len(batch.counts)
        return rows <= self._sizes[-1] and len(batch.token_ids) == rows == len(batch.sampled)

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits of every row, which hold until the next call: [rows, vocabulary]."""
        rows, width = batch.page_tables.shape
        size = self._sizes[bisect_left(self._sizes, rows)]
        numbers = _PADDING.repeat(size, 1)
        numbers[:, :rows] = batch.token_ids, batch.positions, batch.cells, batch.contexts
        self._numbers[:, :size].copy_(send(numbers, self._device))
        self._tables[:rows, :width].copy_(send(batch.page_tables, self._device))
        self._replays[size]()
        return self._logits[:rows]
