"""Read and write the safetensors format one tensor at a time, so that memory does not grow with the model."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.artifacts import decode_json
from services.registry.importers.source import ITEM_BYTES, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from services.registry.importers.source import Progress, Tensor

CHUNK_BYTES = 4 << 20
_MAX_HEADER_BYTES = 100 << 20
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Entry:
    """Where a tensor's bytes lie in a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int

    def chunks(self) -> Iterator[bytes]:
        """Read the bytes in pieces."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.size_bytes
            while left:
                piece = file.read(min(left, CHUNK_BYTES))
                if not piece:
                    raise SourceError(self.path, "was truncated while it was read")
                left -= len(piece)
                yield piece


def read_header(path: Path) -> dict[str, Entry]:
    """List a file's tensors; refuses a damaged or truncated one by the first tensor that is at fault."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise SourceError(path, "is truncated or damaged: its header does not fit")
        try:
            header = decode_json(file.read(length))
            header.pop("__metadata__", None)
            items = list(header.items())
        except (ValueError, AttributeError) as error:
            raise SourceError(path, "is damaged: its header is not JSON") from error
    base = _LENGTH_BYTES + length
    return {name: _entry(path, name, fields, base, size) for name, fields in items}


def _entry(path: Path, name: str, fields: Any, base: int, file_size: int) -> Entry:  # noqa: ANN401 - untrusted JSON
    try:
        dtype, shape = str(fields["dtype"]), tuple(int(extent) for extent in fields["shape"])
        begin, end = (int(offset) for offset in fields["data_offsets"])
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise SourceError(path, f"tensor {name}: damaged header") from error
    if dtype not in ITEM_BYTES:
        raise SourceError(
            path, f"tensor {name}: type {dtype} is unsupported; supported: {', '.join(ITEM_BYTES)}"
        )
    if begin < 0 or min(shape, default=0) < 0 or end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise SourceError(path, f"tensor {name}: its {end - begin} bytes do not match {dtype} {list(shape)}")
    if base + end > file_size:
        raise SourceError(path, f"is truncated: tensor {name} ends at byte {base + end} of {file_size}")
    return Entry(path, dtype, shape, base + begin, end - begin)


def write(path: Path, tensors: Sequence[Tensor], progress: Progress) -> None:
    """Write tensors as they are read, widest type first so that each starts aligned."""
    ordered = sorted(tensors, key=lambda tensor: (-ITEM_BYTES[tensor.dtype], tensor.name))
    total = sum(tensor.size_bytes for tensor in ordered)
    written = reported = 0
    with path.open("wb") as file:
        file.write(_header(ordered))
        for count, tensor in enumerate(ordered, 1):
            for chunk in tensor.chunks():
                file.write(chunk)
            written += tensor.size_bytes
            if written * 10 // total > reported or count == len(ordered):
                reported = written * 10 // total
                progress(f"{written * 100 // total:3} %  {count}/{len(ordered)} tensors, {written >> 20} MiB")


def _header(ordered: Sequence[Tensor]) -> bytes:
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in ordered:
        end = offset + tensor.size_bytes
        fields[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
