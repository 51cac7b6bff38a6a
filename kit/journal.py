"""An append-only file of records with a cursor, under `kit.outbox`. Synchronous, one user at a time.

The log is a header (magic, base) and records (length, CRC-32, body). Offsets are logical: base + place in the
file, so that a cursor stays true when compaction drops the front of the log.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from kit.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HEADER = struct.Struct("<8sQI")
_FRAME = struct.Struct("<II")
_CURSOR = struct.Struct("<QI")
_MAGIC = b"TLOUTBX1"
COMPACT_BYTES = 1 << 20
# Longer records are not looked for after damage: to try every length would take for ever.
_MOST_SOUGHT_BYTES = 1 << 16


def frame_bytes(body: bytes) -> int:
    """What `body` takes on disk."""
    return _FRAME.size + len(body)


class Journal:
    """The file at `path`, beside it `path.cursor` and `path.lock`.

    `discarded_bytes` were a torn tail, `damaged_bytes` lay between sound records and are lost.
    """

    def __init__(self, path: Path, *, disk: Disk | None = None, compact_bytes: int = COMPACT_BYTES) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._compact_bytes = compact_bytes
        self._base = self._end = self._cursor = 0
        self.discarded_bytes = self.damaged_bytes = 0

    def open(self) -> list[tuple[int, bytes]]:
        """Lock, recover past a torn tail and past damage, and return what the cursor has not passed.

        As (end offset, body).
        """
        self._lock = self._disk.lock(self._sibling("lock"))
        if self._disk.size(self._path) < _HEADER.size:
            self._file = self._create(base=0, content=b"")
            self._disk.sync_folder(self._path.parent)
        else:
            self._file = self._disk.open(self._path)
        self._cursor_file = self._disk.open(self._sibling("cursor"))
        records = self._recover()
        self._cursor = min(max(self._read_cursor(), self._base), self._end)
        return [(end, body) for end, body in records if end > self._cursor]

    def append(self, bodies: Sequence[bytes]) -> list[int]:
        """Write all with one fsync; returns their end offsets. On an error nothing was appended."""
        frames = [_FRAME.pack(len(body), zlib.crc32(body)) + body for body in bodies]
        place = self._end - self._base + _HEADER.size
        try:
            self._disk.write(self._file, b"".join(frames), place)
            self._disk.sync_data(self._file)
        except OSError:
            self._disk.truncate(self._file, place)
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
        self._disk.write(self._cursor_file, place + struct.pack("<I", zlib.crc32(place)), 0)
        if offset - self._base >= max(self._compact_bytes, (self._end - self._base) // 2):
            self._compact()

    def close(self) -> None:
        """Release the files and the lock."""
        for descriptor in (self._file, self._cursor_file, self._lock):
            self._disk.close(descriptor)

    def _sibling(self, suffix: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{suffix}")

    def _recover(self) -> list[tuple[int, bytes]]:
        content = self._disk.read(self._file)
        magic, self._base, crc = _HEADER.unpack_from(content)
        if magic != _MAGIC or crc != zlib.crc32(content[: _HEADER.size - 4]):
            raise ValueError(f"{self._path} is not an outbox")
        records = []
        place = end = _HEADER.size
        while place < len(content):
            if (body := _read_frame(content, place)) is None:
                place = _next_frame(content, place + 1)
                continue
            self.damaged_bytes += place - end
            place = end = place + frame_bytes(body)
            records.append((self._base + end - _HEADER.size, body))
        self._end = self._base + end - _HEADER.size
        self.discarded_bytes = len(content) - end
        self._disk.truncate(self._file, end)
        return records

    def _read_cursor(self) -> int:
        raw = self._disk.read(self._cursor_file)
        if len(raw) < _CURSOR.size:
            return 0
        offset, crc = _CURSOR.unpack_from(raw)
        return int(offset) if crc == zlib.crc32(raw[:8]) else 0

    def _compact(self) -> None:
        place = self._cursor - self._base + _HEADER.size
        rest = self._disk.read(self._file, place)
        old, self._file = self._file, self._create(self._cursor, rest)
        self._base = self._cursor
        self._disk.close(old)
        self._disk.sync_folder(self._path.parent)

    def _create(self, base: int, content: bytes) -> int:
        """Put a new log in the place of the old one, whole or not at all."""
        start = _MAGIC + struct.pack("<Q", base)
        new = self._sibling("new")
        file = self._disk.create(new)
        try:
            self._disk.write(file, start + struct.pack("<I", zlib.crc32(start)) + content, 0)
            self._disk.sync(file)
            self._disk.replace(new, self._path)
        except OSError:
            self._disk.close(file)
            raise
        return file


def _next_frame(content: bytes, place: int) -> int:
    """Where the next sound record after damage starts; the end of the content where there is none."""
    for start in range(place, len(content) - _FRAME.size):
        length, _ = _FRAME.unpack_from(content, start)
        if length <= _MOST_SOUGHT_BYTES and _read_frame(content, start) is not None:
            return start
    return len(content)


def _read_frame(content: bytes, place: int) -> bytes | None:
    if place + _FRAME.size > len(content):
        return None
    length, crc = _FRAME.unpack_from(content, place)
    body = content[place + _FRAME.size : place + _FRAME.size + length]
    # An empty body is never written: a tail of zeros must not read as records.
    valid = length > 0 and len(body) == length and zlib.crc32(body) == crc
    return body if valid else None
