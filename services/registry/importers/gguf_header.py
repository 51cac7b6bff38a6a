"""The header of a GGUF file: its metadata and where its tensors lie.

Written for vocabularies of hundreds of thousands of strings: one pass, and one Python object a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_LENGTH_BYTES = 8
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    kind: np.dtype(name)
    for kind, name in {
        0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8",
        12: "<f8",
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as its entry describes it: extents innermost first, `start` from the beginning of the file."""

    name: str
    extents: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class Header:
    """All metadata by key, and every tensor's entry."""

    metadata: dict[str, Any]
    tensors: list[TensorInfo]


def read_header(path: Path, data: mmap.mmap | bytes) -> Header:
    """Parse it; refuses a damaged or truncated one by the entry that is at fault."""
    cursor = _Cursor(path, data)
    cursor.reading = "its first bytes"
    if cursor.take(4) != b"GGUF":
        raise SourceError(path, "is not GGUF")
    version, tensor_count, key_count = cursor.u32(), cursor.u64(), cursor.u64()
    if version not in _VERSIONS:
        raise SourceError(path, f"is GGUF of version {version}; supported: 2, 3")
    metadata = _metadata(cursor, key_count)
    entries = [_tensor(cursor, number, tensor_count) for number in range(tensor_count)]
    names = [entry.name for entry in entries]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SourceError(path, f"tensor {twice} is there twice")
    base = _aligned(path, cursor.position, metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    return Header(
        metadata, [TensorInfo(entry.name, entry.extents, entry.kind, base + entry.start) for entry in entries]
    )


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(count):
        cursor.reading = f"metadata key {number + 1} of {count}"
        key = cursor.string()
        cursor.reading = f"metadata {key}"
        if key in metadata:
            raise SourceError(cursor.path, f"metadata {key} is there twice")
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _tensor(cursor: _Cursor, number: int, count: int) -> TensorInfo:
    cursor.reading = f"the entry of tensor {number + 1} of {count}"
    name = cursor.string()
    cursor.reading = f"the entry of tensor {name}"
    dimensions = cursor.u32()
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise SourceError(cursor.path, f"tensor {name} has {dimensions} dimensions")
    extents = tuple(cursor.u64() for _ in range(dimensions))
    return TensorInfo(name, extents, cursor.u32(), cursor.u64())


def _aligned(path: Path, position: int, alignment: object) -> int:
    if not isinstance(alignment, int) or alignment < 1:
        raise SourceError(path, f"metadata general.alignment: {alignment} is no alignment")
    return -(-position // alignment) * alignment


class _Cursor:
    """Reads little-endian values in order; `reading` names what is to blame when they end too early."""

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        self.path = path
        self.position = 0
        self.reading = ""
        self._data = data

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise SourceError(self.path, f"is truncated or damaged in {self.reading}")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> str:
        try:
            return self.take(self.u64()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(self.path, f"is damaged in {self.reading}: not UTF-8") from error

    def value(self, kind: int) -> Any:  # noqa: ANN401 - GGUF values are of any type
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.u32(), self.u64())
        return self._scalars(kind, 1)[0]

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind != _STRING:
            return self._scalars(kind, count)
        if count * _LENGTH_BYTES > len(self._data) - self.position:
            raise SourceError(self.path, f"is truncated or damaged in {self.reading}")
        return [self.string() for _ in range(count)]

    def _scalars(self, kind: int, count: int) -> list[Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise SourceError(self.path, f"is damaged in {self.reading}: values of type {kind}")
        values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values
