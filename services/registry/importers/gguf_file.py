"""A GGUF file, checked while it is opened: metadata by type, tensors by name."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from services.registry.importers.gguf_header import read_header
from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from services.registry.importers.gguf_header import TensorInfo

T = TypeVar("T")

SUPPORTED_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q4_K", "Q5_K", "Q6_K"),
)
_KINDS = {int(member): member for member in GGMLQuantizationType}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as stored: its type, its shape (outermost first), its rows' bytes as uint8 [rows, bytes]."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    rows: NDArray[np.uint8]


class GgufFile:
    """An open file; `metadata` reads its key-value section, `tensors` maps its weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise SourceError(path, "is empty")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = read_header(path, data)
        self._metadata = header.metadata
        self._bytes = np.frombuffer(data, np.uint8)
        self.tensors = {info.name: self._stored(info) for info in header.tensors}

    def metadata(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of a key; refuses an absent one (without a default) or one of another type."""
        value = self.find(key)
        if value is None:
            value = default
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise SourceError(
                self.path, f"metadata {key} is {'missing' if value is None else 'of a wrong type'}"
            )
        return value

    def find(self, key: str) -> Any:  # noqa: ANN401 - GGUF values are of any type
        """The value of a key, or None."""
        return self._metadata.get(key)

    def _stored(self, info: TensorInfo) -> StoredTensor:
        member = _KINDS.get(info.kind)
        name = member.name if member is not None else f"number {info.kind}"
        if member is None or name not in SUPPORTED_TYPES:
            supported = ", ".join(SUPPORTED_TYPES)
            raise SourceError(
                self.path, f"tensor {info.name}: type {name} is unsupported; supported: {supported}"
            )
        values, size = GGML_QUANT_SIZES[member]
        width, count = info.extents[0], math.prod(info.extents)
        if width % values or not count:
            raise SourceError(self.path, f"tensor {info.name}: rows of {width} values do not fit type {name}")
        end = info.start + count // values * size
        if end > len(self._bytes):
            raise SourceError(
                self.path, f"is truncated: tensor {info.name} ends at byte {end} of {len(self._bytes)}"
            )
        rows = self._bytes[info.start : end].reshape(-1, width // values * size)
        return StoredTensor(info.name, member, info.extents[::-1], rows)
