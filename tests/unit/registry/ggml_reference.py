"""GGML's block formats value by value, as its documentation of the structures has them; slow and plain."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Kind = gguf.GGMLQuantizationType


def q5_0(block: bytes) -> list[float]:
    (scale, high), nibbles = struct.unpack("<eI", block[:6]), block[6:]
    low = [nibbles[i] & 15 | (high >> i & 1) << 4 for i in range(16)]
    upper = [nibbles[i] >> 4 | (high >> i + 16 & 1) << 4 for i in range(16)]
    return [scale * (value - 16) for value in low + upper]


def q5_1(block: bytes) -> list[float]:
    (scale, least, high), nibbles = struct.unpack("<eeI", block[:8]), block[8:]
    low = [nibbles[i] & 15 | (high >> i & 1) << 4 for i in range(16)]
    upper = [nibbles[i] >> 4 | (high >> i + 16 & 1) << 4 for i in range(16)]
    return [scale * value + least for value in low + upper]


def _scale_and_least(packed: bytes, group: int) -> tuple[int, int]:
    """Six bits each for eight groups, packed in twelve bytes."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
    return scale, packed[group + 4] >> 4 | packed[group] >> 6 << 4


def q4_k(block: bytes) -> list[float]:
    (scale, least), packed, nibbles = struct.unpack("<ee", block[:4]), block[4:16], block[16:]
    values = []
    for group in range(8):
        part, shift = nibbles[group // 2 * 32 :][:32], group % 2 * 4
        own, low = _scale_and_least(packed, group)
        values += [scale * own * (byte >> shift & 15) - least * low for byte in part]
    return values


def q5_k(block: bytes) -> list[float]:
    (scale, least), packed = struct.unpack("<ee", block[:4]), block[4:16]
    high, nibbles = block[16:48], block[48:]
    values = []
    for group in range(8):
        part, shift = nibbles[group // 2 * 32 :][:32], group % 2 * 4
        own, low = _scale_and_least(packed, group)
        five_bits = [byte >> shift & 15 | (high[i] >> group & 1) << 4 for i, byte in enumerate(part)]
        values += [scale * own * value - least * low for value in five_bits]
    return values


def q6_k(block: bytes) -> list[float]:
    low, high = block[:128], block[128:192]
    scales, (scale,) = struct.unpack("<16b", block[192:208]), struct.unpack("<e", block[208:])
    values = []
    for i in range(256):
        half, quarter, place = i // 128, i % 128 // 32, i % 32
        byte = low[half * 64 + quarter % 2 * 32 + place]
        nibble = byte >> 4 if quarter >= 2 else byte & 15
        six_bits = nibble | (high[half * 32 + place] >> 2 * quarter & 3) << 4
        values.append(scale * scales[i // 16] * (six_bits - 32))
    return values


FORMATS: dict[gguf.GGMLQuantizationType, Callable[[bytes], list[float]]] = {
    Kind.Q5_0: q5_0,
    Kind.Q5_1: q5_1,
    Kind.Q4_K: q4_k,
    Kind.Q5_K: q5_k,
    Kind.Q6_K: q6_k,
}
# Where a block keeps its half-precision scales, which random bytes would make infinite.
_HALVES = {Kind.Q5_0: (0,), Kind.Q5_1: (0, 2), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}


def random_rows(kind: gguf.GGMLQuantizationType, rows: int, width: int) -> NDArray[np.uint8]:
    """Rows of blocks with every bit random but those of the scales."""
    random = np.random.default_rng(11)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows * width // values, size), dtype=np.uint8)
    for start in _HALVES[kind]:
        scales = random.uniform(-0.01, 0.01, len(blocks)).astype("<f2")
        blocks[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def dequantised(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> NDArray[np.float64]:
    """The values of rows of blocks."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    values = [FORMATS[kind](block.tobytes()) for block in rows.reshape(-1, size)]
    return np.array(values).reshape(len(rows), -1)
