"""The page pool in the layout of the native kernels."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import TYPE_CHECKING

import torch

from services.worker.engine.kv import head_bytes

if TYPE_CHECKING:
    from services.worker.engine.batch import Ints
    from services.worker.engine.spec import ModelSpec

# Positions whose keys lie side by side.
LANES = 16


class NativePool:
    """KV of all layers: [layers, pages + 1, 2 * kv_heads, numbers of a head of a page], keys before values.

    Within a head of a page, services/worker/native/attention.h says where a number lies. The kernels read no
    position that was not written, so nothing is ever zeroed.
    """

    def __init__(self, spec: ModelSpec, page_count: int, page_size: int, dtype: torch.dtype) -> None:
        self.page_size = page_size
        self.page_count = page_count
        self._head_dim = spec.head_dim
        numbers = page_size * head_bytes(spec.head_dim, dtype) // dtype.itemsize
        shape = (len(spec.layers), page_count + 1, 2 * spec.kv_heads, numbers)
        self.data = _memory(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def blank(self, pages: Ints, first: int = 0) -> None:
        """Nothing to do."""

    def fill(self, pages: Ints, first: int, value: float) -> None:
        """Set positions `first` and later of pages, in all layers."""
        layers, total, heads, _ = self.data.shape
        pair, dim, blocks = min(2, 4 // self.data.element_size()), self._head_dim, self.page_size // LANES
        runs = self.data.view(layers, total, 2, heads // 2, blocks, -1)
        numbers, scales = runs[..., : LANES * dim], runs[..., LANES * dim :].view(torch.float32)
        keys = numbers[:, :, 0].view(layers, total, heads // 2, blocks, dim // pair, LANES, pair)
        values = numbers[:, :, 1].view(layers, total, heads // 2, blocks, LANES // pair, dim, pair)
        number = 1 if scales.numel() else value
        for position in range(first, self.page_size):
            block, lane = divmod(position, LANES)
            scales[:, pages, :, :, block, lane : lane + 1] = value
            keys[:, pages, :, block, :, lane] = number
            values[:, pages, :, block, lane // pair, :, lane % pair] = number


def _memory(size: int) -> torch.Tensor:
    """Bytes that take memory as they are first used, in huge pages if the system has them.

    Attention jumps between pages: with small ones it waits for their addresses as long as for the numbers.
    Private, since of shared memory most systems make small pages only.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
