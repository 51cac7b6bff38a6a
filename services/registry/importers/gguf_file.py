"""A GGUF file, checked while it is opened: metadata by type, tensors by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from gguf.gguf_reader import ReaderField, ReaderTensor

T = TypeVar("T")

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


class _CheckedReader(GGUFReader):
    """Refuses a tensor by name before the library maps its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(path)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            _check_tensor(self.path, field, start_offs, len(self.data))
        super()._build_tensors(start_offs, fields)


def _check_tensor(path: Path, field: ReaderField, base: int, file_size: int) -> None:
    _, raw_name, _, extents, raw_type, offset = field.parts
    name = bytes(raw_name).decode()
    known = {int(member): member.name for member in GGMLQuantizationType}
    kind = known.get(int(raw_type[0]), f"number {int(raw_type[0])}")
    if kind not in SUPPORTED_TYPES:
        supported = ", ".join(SUPPORTED_TYPES)
        raise SourceError(path, f"tensor {name}: type {kind} is unsupported; supported: {supported}")
    count = 1
    for extent in extents.tolist():
        count *= extent
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    end = base + int(offset[0]) + count * block_bytes // block
    if end > file_size:
        raise SourceError(path, f"is truncated: tensor {name} ends at byte {end} of {file_size}")


class GgufFile:
    """An open file; `metadata` reads its key-value section, `tensors` maps its weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = _CheckedReader(path)
            self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise SourceError(path, f"is damaged, truncated or not GGUF: {error}") from error

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
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()
