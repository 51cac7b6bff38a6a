"""Hugging Face tensors from GGUF ones.

A tensor stored in a float type keeps its values: F16 and BF16 as they are, F32 as BF16 where that loses
nothing. A quantised tensor is dequantised and rounded to BF16 once, to nearest even.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gguf import quants

from services.registry.importers.gguf_families import TOP_NAMES
from services.registry.importers.gguf_rope import ROPE_FREQS
from services.registry.importers.source import SourceError, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gguf import GGMLQuantizationType
    from numpy.typing import NDArray

    from services.registry.importers.families.decoder import DecoderConfig
    from services.registry.importers.gguf_families import GgufFamily
    from services.registry.importers.gguf_file import GgufFile, StoredTensor

CHUNK_VALUES = 1 << 20
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj")


@dataclass(frozen=True)
class Place:
    """Where GGUF keeps a tensor: alone under a name, or as one of several experts stacked under it."""

    name: str
    expert: int | None = None


def place_of(hf_name: str, family: GgufFamily) -> Place:
    """Find a Hugging Face tensor's place."""
    module, _, kind = hf_name.rpartition(".")
    layer = _LAYER.fullmatch(module)
    if layer is None:
        return Place(f"{TOP_NAMES[module]}.{kind}")
    prefix, rest = f"blk.{layer[1]}.", layer[2]
    if expert := _EXPERT.fullmatch(rest):
        return Place(f"{prefix}ffn_{expert[2]}_exps.{kind}", int(expert[1]))
    return Place(f"{prefix}{family.layer_names[rest]}.{kind}")


def tensors_of(file: GgufFile, family: GgufFamily, config: DecoderConfig) -> list[Tensor]:
    """Every tensor the configuration calls for; refuses a missing, misshapen or unexpected one by name."""
    shapes = config.tensor_shapes()
    places = {hf_name: place_of(hf_name, family) for hf_name in shapes}
    expected = {place.name for place in places.values()} | {ROPE_FREQS}
    for unexpected in sorted(file.tensors.keys() - expected):
        raise SourceError(file.path, f"tensor {unexpected} has no place in this architecture")
    experts = getattr(config, "num_experts", 0)
    tensors = []
    for hf_name, shape in shapes.items():
        place = places[hf_name]
        stacked = shape if place.expert is None else (experts, *shape)
        stored = _checked(file, place.name, stacked)
        rows = stored.rows
        if place.expert is not None:
            rows = rows.reshape(experts, shape[0], -1)[place.expert]
        order = _row_order(hf_name, config) if family.interleaved else None
        offset = family.norm_offset if hf_name.endswith("norm.weight") else 0.0
        weights = _Weights(file.path, stored.name, stored.kind, rows, order, offset)
        tensors.append(weights.as_tensor(hf_name, shape))
    return tensors


def _checked(file: GgufFile, name: str, shape: tuple[int, ...]) -> StoredTensor:
    stored = file.tensors.get(name)
    if stored is None:
        raise SourceError(file.path, f"tensor {name} is missing")
    if stored.shape != shape:
        raise SourceError(
            file.path, f"tensor {name} is {list(stored.shape)}, the configuration says {list(shape)}"
        )
    return stored


def _row_order(hf_name: str, config: DecoderConfig) -> NDArray[np.intp] | None:
    """GGUF interleaves the rotary halves of query and key rows; this puts them back in halves."""
    heads = {
        "q_proj.weight": config.num_attention_heads,
        "k_proj.weight": config.num_key_value_heads,
    }.get(hf_name.rpartition("self_attn.")[2])
    if heads is None:
        return None
    rows = np.arange(heads * config.head_dim).reshape(heads, config.head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True)
class _Weights:
    """One tensor's rows, read in chunks; `offset` was added to its values."""

    path: Path
    name: str
    kind: GGMLQuantizationType
    rows: NDArray[np.uint8]
    order: NDArray[np.intp] | None
    offset: float

    def as_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if not self.offset and self.kind.name in {"F16", "BF16"}:
            return Tensor(name, self.kind.name, shape, self._raw)
        if self.kind.name == "F32" and any(map(_exceeds_bfloat16, self._values())):
            return Tensor(name, "F32", shape, self._exact)
        return Tensor(name, "BF16", shape, self._rounded)

    def _chunks(self) -> Iterator[NDArray[np.uint8]]:
        step = max(CHUNK_VALUES // self.rows.shape[1], 1)
        for start in range(0, len(self.rows), step):
            window = slice(start, start + step)
            yield self.rows[window] if self.order is None else self.rows[self.order[window]]

    def _raw(self) -> Iterator[bytes]:
        """The bytes as stored, once the values proved finite."""
        for chunk in self._chunks():
            self._dequantised(chunk)
            yield chunk.tobytes()

    def _exact(self) -> Iterator[bytes]:
        for values in self._values():
            yield values.tobytes()

    def _rounded(self) -> Iterator[bytes]:
        for values in self._values():
            yield to_bfloat16(values).tobytes()

    def _values(self) -> Iterator[NDArray[np.float32]]:
        for chunk in self._chunks():
            values = self._dequantised(chunk)
            yield values - np.float32(self.offset) if self.offset else values

    def _dequantised(self, chunk: NDArray[np.uint8]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = quants.dequantize(chunk, self.kind)
        if not np.isfinite(values).all():
            raise SourceError(self.path, f"tensor {self.name} holds values that are not finite")
        return values


def _exceeds_bfloat16(values: NDArray[np.float32]) -> bool:
    return bool(np.any(values.view(np.uint32) & 0xFFFF))


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 values to bfloat16, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
