"""The epoch counter: rises over the life of a state directory, whatever dies."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError

if TYPE_CHECKING:
    from pathlib import Path


class EpochStore:
    """One durable counter, shared by scheduler starts and worker attachments."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()

    async def take(self, above: int = 0) -> int:
        """Return the next epoch, above every one taken before and above `above`, once it is fsynced."""
        async with self._lock:
            return await asyncio.to_thread(self._take, above)

    def _take(self, above: int) -> int:
        epoch = max(self._read(), above) + 1
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return epoch

    def _read(self) -> int:
        if not self._path.exists():
            return 0
        text = self._path.read_text().strip()
        if not text.isdigit():
            raise ServiceError(Code.INTERNAL, "STATE_CORRUPT", f"{self._path} does not hold a number")
        return int(text)
