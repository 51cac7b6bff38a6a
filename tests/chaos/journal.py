"""What every client was told, on disk before anything else happens: the truth of a chaos run."""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """Lines of JSON, fsynced in groups: `write` returns once its line is on disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "journal")

    async def write(self, call: int, kind: str, **facts: Any) -> None:
        """Record what happened to a call."""
        line = json.dumps({"at": round(time.time(), 4), "call": call, "kind": kind, **facts})
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((line, done))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        await asyncio.shield(done)

    async def close(self) -> None:
        """Write what is left."""
        if self._flusher is not None:
            await self._flusher
        self._thread.shutdown()
        self._file.close()

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            lines = "".join(f"{line}\n" for line, _ in batch)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._sync, lines)
            for _, done in batch:
                done.set_result(None)
        self._flusher = None

    def _sync(self, lines: str) -> None:
        self._file.write(lines)
        self._file.flush()
        os.fsync(self._file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """Every line of a closed journal."""
    return [json.loads(line) for line in path.read_text().splitlines()]
