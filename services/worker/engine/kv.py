"""The page pool: every layer's keys and values in fixed-size pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from services.worker.engine.errors import EngineError

if TYPE_CHECKING:
    from services.worker.engine.batch import Ints
    from services.worker.engine.config import EngineConfig
    from services.worker.engine.spec import ModelSpec

_CGROUP = Path("/sys/fs/cgroup")


class PagePool:
    """KV of all layers: [layers, pages + 1, 2 * kv_heads, page_size, head_dim], keys before values.

    Heads come before positions, so that attention reads one run per head and page (measured: 1.4 times as
    fast as positions first). The last page is blank: it stays zero, and fills up page tables.
    """

    def __init__(
        self, spec: ModelSpec, page_count: int, page_size: int, dtype: torch.dtype, device: str
    ) -> None:
        self.page_size = page_size
        self.page_count = page_count
        self.kv_heads = spec.kv_heads
        shape = (len(spec.layers), page_count + 1, 2 * spec.kv_heads, page_size, spec.head_dim)
        # Not zeroed: touching gigabytes takes tens of seconds, and `blank` clears a page before it is read.
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self.data[:, page_count] = 0
        runs = (page_count + 1) * 2 * spec.kv_heads
        self.layers = [layer.view(page_count + 1, -1) for layer in self.data]
        self._vectors = [layer.view(runs * page_size, spec.head_dim) for layer in self.data]
        self._heads = torch.arange(2 * spec.kv_heads, device=device)

    def vector_index(self, cells: Ints) -> torch.Tensor:
        """Where each cell's heads lie, for `write`: [cells * 2 * kv_heads]."""
        flat = torch.from_numpy(cells).to(self._heads.device)
        page, offset = flat // self.page_size, flat % self.page_size
        run = page[:, None] * len(self._heads) + self._heads
        return (run * self.page_size + offset[:, None]).view(-1)

    def write(self, layer: int, index: torch.Tensor, heads: torch.Tensor) -> None:
        """Store keys and values [tokens, 2 * kv_heads, head_dim] of a layer at a `vector_index`."""
        self._vectors[layer].index_copy_(0, index, heads.reshape(len(index), -1))

    def blank(self, pages: Ints, first: int = 0) -> None:
        """Zero positions `first` and later of pages: a masked position must not hold a NaN either."""
        self.fill(pages, first, 0)

    def fill(self, pages: Ints, first: int, value: float) -> None:
        """Set positions `first` and later of pages, in all layers."""
        if len(pages):
            index = torch.from_numpy(pages).to(self._heads.device)
            self.data[:, :, :, first:].index_fill_(1, index, value)


def head_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one position's key, or value, of a head; int8 has a float32 scale for it."""
    return head_dim * dtype.itemsize + (torch.float32.itemsize if dtype == torch.int8 else 0)


def bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes that one token's keys and values take over all layers."""
    return len(spec.layers) * 2 * spec.kv_heads * head_bytes(spec.head_dim, dtype)


def page_count(config: EngineConfig, token_bytes: int) -> int:
    """Pages that the configuration allows, or that free memory does."""
    if config.page_count is not None:
        return config.page_count
    budget = config.kv_bytes
    if budget is None:
        budget = int(config.kv_fraction * _free_bytes(config.device))
    count = budget // (token_bytes * config.page_size)
    if count < 1:
        raise EngineError(f"{budget} bytes of KV hold no page of {token_bytes * config.page_size} bytes")
    return count


def _free_bytes(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, _free_in_cgroup())
    raise EngineError("free memory is unknown: set kv_bytes or page_count")


def _free_in_cgroup() -> int:
    unlimited = 1 << 62
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if not limit.exists() or (text := limit.read_text().strip()) == "max":
        return unlimited
    return max(int(text) - int(used.read_text()), 0)
