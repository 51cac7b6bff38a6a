"""The page pool of kernels that read nothing unwritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.engine.kv import PagePool

if TYPE_CHECKING:
    from services.worker.engine.batch import Ints


class GpuPool(PagePool):
    """As `PagePool`, but nothing is ever zeroed: a step waits for no copy of page numbers."""

    def blank(self, pages: Ints, first: int = 0) -> None:
        """Nothing to do."""
