"""An append-only file of records with a cursor, under `kit.outbox`. Synchronous, one user at a time.

The log is a header (magic, base) and records (length, CRC-32, body). Offsets are logical: base + place in the
file, so that a cursor stays true when compaction drops the front of the log.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HEADER = struct.Struct("<8sQI")
_FRAME = struct.Struct("<II")
_CURSOR = struct.Struct("<QI")
_MAGIC = b"TLOUTBX1"
COMPACT_BYTES = 1 << 20


def frame_bytes(body: bytes) -> int:
    """What `body` takes on disk."""
    return _FRAME.size + len(body)


class Journal:
    """The file at `path`, beside it `path.cursor` and `path.lock`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._base = self._end = self._cursor = 0
        self.discarded_bytes = 0

    def open(self) -> list[tuple[int, bytes]]:
        """Lock, recover past a torn tail, and return what the cursor has not passed as (end offset, body)."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._sibling("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not self._path.exists() or self._path.stat().st_size < _HEADER.size:
            self._file = self._create(base=0, content=b"")
            self._sync_directory()
        else:
            self._file = os.open(self._path, os.O_RDWR)
        self._cursor_file = os.open(self._sibling("cursor"), os.O_RDWR | os.O_CREAT, 0o600)
        records = self._recover()
        self._cursor = min(max(self._read_cursor(), self._base), self._end)
        return [(end, body) for end, body in records if end > self._cursor]

    def append(self, bodies: Sequence[bytes]) -> list[int]:
        """Write all with one fsync; returns their end offsets. On an error nothing was appended."""
        frames = [_FRAME.pack(len(body), zlib.crc32(body)) + body for body in bodies]
        place = self._end - self._base + _HEADER.size
        try:
            _write_all(self._file, b"".join(frames), place)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, place)
            raise
        ends = []
        for frame in frames:
            self._end += len(frame)
            ends.append(self._end)
        return ends

    def advance(self, offset: int) -> None:
        """Say that all before `offset` is done. A cursor that is lost repeats records, never skips one."""
        self._cursor = offset
        place = struct.pack("<Q", offset)
        _write_all(self._cursor_file, place + struct.pack("<I", zlib.crc32(place)), 0)
        if offset - self._base >= max(COMPACT_BYTES, (self._end - self._base) // 2):
            self._compact()

    def close(self) -> None:
        """Release the files and the lock."""
        for descriptor in (self._file, self._cursor_file, self._lock):
            os.close(descriptor)

    def _sibling(self, suffix: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{suffix}")

    def _recover(self) -> list[tuple[int, bytes]]:
        content = self._path.read_bytes()
        magic, self._base, crc = _HEADER.unpack_from(content)
        if magic != _MAGIC or crc != zlib.crc32(content[: _HEADER.size - 4]):
            raise ValueError(f"{self._path} is not an outbox")
        records = []
        place = _HEADER.size
        while (body := _read_frame(content, place)) is not None:
            place += frame_bytes(body)
            records.append((self._base + place - _HEADER.size, body))
        self._end = self._base + place - _HEADER.size
        self.discarded_bytes = len(content) - place
        os.ftruncate(self._file, place)
        return records

    def _read_cursor(self) -> int:
        raw = os.pread(self._cursor_file, _CURSOR.size, 0)
        if len(raw) < _CURSOR.size:
            return 0
        offset, crc = _CURSOR.unpack(raw)
        return int(offset) if crc == zlib.crc32(raw[:8]) else 0

    def _compact(self) -> None:
        place = self._cursor - self._base + _HEADER.size
        rest = os.pread(self._file, self._end - self._cursor, place)
        old, self._file = self._file, self._create(self._cursor, rest)
        self._base = self._cursor
        os.close(old)
        self._sync_directory()

    def _create(self, base: int, content: bytes) -> int:
        """Put a new log in the place of the old one, whole or not at all."""
        start = _MAGIC + struct.pack("<Q", base)
        new = self._sibling("new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(file, start + struct.pack("<I", zlib.crc32(start)) + content, 0)
            os.fsync(file)
            new.replace(self._path)
        except OSError:
            os.close(file)
            raise
        return file

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _read_frame(content: bytes, place: int) -> bytes | None:
    if place + _FRAME.size > len(content):
        return None
    length, crc = _FRAME.unpack_from(content, place)
    body = content[place + _FRAME.size : place + _FRAME.size + length]
    # An empty body is never written: a tail of zeros must not read as records.
    valid = length > 0 and len(body) == length and zlib.crc32(body) == crc
    return body if valid else None


def _write_all(descriptor: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written
