"""The files under `kit.journal`. A test may put a disk of its own in their place."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Disk:
    """The machine's own disk; files are named by the descriptors that `open` and `create` return."""

    def lock(self, path: Path) -> int:
        """Hold the file at `path`, made with its folders; `BlockingIOError` when another process does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = self.open(path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def open(self, path: Path) -> int:
        """Open a file to read and write; a missing one is made, empty."""
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def create(self, path: Path) -> int:
        """Open a file to read and write, and empty it."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def close(self, file: int) -> None:
        """Close a file; a lock ends with it."""
        os.close(file)

    def size(self, path: Path) -> int:
        """Bytes in the file at `path`; 0 when there is none."""
        return path.stat().st_size if path.exists() else 0

    def read(self, file: int, place: int = 0) -> bytes:
        """All from byte `place` on."""
        return os.pread(file, os.fstat(file).st_size - place, place)

    def write(self, file: int, data: bytes, place: int) -> None:
        """Write all at byte `place`; on an error a part may be there."""
        view = memoryview(data)
        while view:
            written = os.pwrite(file, view, place)
            view, place = view[written:], place + written

    def truncate(self, file: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(file, size)

    def sync_data(self, file: int) -> None:
        """Return once what was written survives the host."""
        os.fdatasync(file)

    def sync(self, file: int) -> None:
        """Return once the whole file survives the host."""
        os.fsync(file)

    def replace(self, new: Path, old: Path) -> None:
        """Put one file in the place of another, whole or not at all."""
        new.replace(old)

    def sync_folder(self, path: Path) -> None:
        """Return once the names in a folder survive the host."""
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
