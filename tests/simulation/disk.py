"""A simulated disk: what was not synced may be lost, or be there in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.disk import Disk
from tests.simulation.kernel import PowerLoss

if TYPE_CHECKING:
    import random
    from pathlib import Path


class _File:
    __slots__ = ("content", "durable")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""


class SimulatedDisk(Disk):
    """The disk of one host. `crash` decides what of the unsynced bytes was written."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._open: dict[int, _File] = {}
        self._locks: dict[int, str] = {}
        self._next = 3
        self.fuse: int | None = None  # bytes until the power goes
        self.torn = 0

    def crash(self, *, host: bool) -> None:
        """The process is gone; with `host`, so is what was not synced, in whole or in part."""
        self._open.clear()
        self._locks.clear()
        self.fuse = None
        if not host:
            return
        self._names = dict(self._durable_names)
        for file in self._names.values():
            if bytes(file.content) != file.durable:
                self.torn += 1
                file.content = bytearray(self._tear(file))
                file.durable = bytes(file.content)

    def lock(self, path: Path) -> int:
        if str(path) in self._locks.values():
            raise BlockingIOError(str(path))
        file = self.open(path)
        self._locks[file] = str(path)
        return file

    def open(self, path: Path) -> int:
        name = str(path)
        if name not in self._names:
            self._names[name] = self._durable_names[name] = _File()
        return self._opened(self._names[name])

    def create(self, path: Path) -> int:
        self._names[str(path)] = file = _File()
        return self._opened(file)

    def close(self, file: int) -> None:
        del self._open[file]
        self._locks.pop(file, None)

    def size(self, path: Path) -> int:
        file = self._names.get(str(path))
        return len(file.content) if file is not None else 0

    def read(self, file: int, place: int = 0) -> bytes:
        return bytes(self._open[file].content[place:])

    def write(self, file: int, data: bytes, place: int) -> None:
        content = self._open[file].content
        if len(content) < place:
            content.extend(bytes(place - len(content)))
        if self.fuse is not None and self.fuse < len(data):
            content[place : place + self.fuse] = data[: self.fuse]
            raise PowerLoss
        if self.fuse is not None:
            self.fuse -= len(data)
        content[place : place + len(data)] = data

    def truncate(self, file: int, size: int) -> None:
        del self._open[file].content[size:]

    def sync_data(self, file: int) -> None:
        self.sync(file)

    def sync(self, file: int) -> None:
        if self.fuse is not None:
            raise PowerLoss
        self._open[file].durable = bytes(self._open[file].content)

    def replace(self, new: Path, old: Path) -> None:
        self._names[str(old)] = self._names.pop(str(new))

    def sync_folder(self, path: Path) -> None:
        self._durable_names = dict(self._names)

    def _opened(self, file: _File) -> int:
        self._next += 1
        self._open[self._next] = file
        return self._next

    def _tear(self, file: _File) -> bytes:
        """Keep a part of what was written since the last sync: a prefix, or zeros in its place."""
        content, durable = bytes(file.content), file.durable
        same = next(
            (i for i, (a, b) in enumerate(zip(content, durable, strict=False)) if a != b),
            min(len(content), len(durable)),
        )
        cut = self._rng.randint(same, max(len(content), len(durable)))
        kept = content[:cut] + durable[cut:]
        if self._rng.random() < 0.2:
            kept = content[:cut] + bytes(max(0, len(content) - cut))
        return kept
