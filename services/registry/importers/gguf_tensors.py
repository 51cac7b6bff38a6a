"""Hugging Face tensors from GGUF ones.

A tensor stored in a float type keeps its values: F16 and BF16 as they are, F32 as BF16 where that loses
nothing. A quantised tensor is dequantised and rounded to BF16 once, to nearest even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gguf import quants

from services.registry.importers.gguf_config import ROPE_FREQS
from services.registry.importers.source import SourceError, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gguf.gguf_reader import ReaderTensor
    from numpy.typing import NDArray

    from services.registry.importers.gguf_file import GgufFile
    from services.registry.importers.llama import LlamaConfig

CHUNK_VALUES = 1 << 20

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors_of(file: GgufFile, config: LlamaConfig) -> list[Tensor]:
    """Every tensor the configuration calls for; refuses a missing, misshapen or unexpected one by name."""
    shapes = config.tensor_shapes()
    names = {hf_name: gguf_name(hf_name) for hf_name in shapes}
    for unexpected in sorted(file.tensors.keys() - set(names.values()) - {ROPE_FREQS}):
        raise SourceError(file.path, f"tensor {unexpected} has no place in this architecture")
    tensors = []
    for hf_name, shape in shapes.items():
        stored = file.tensors.get(names[hf_name])
        if stored is None:
            raise SourceError(file.path, f"tensor {names[hf_name]} is missing")
        actual = tuple(reversed(stored.shape.tolist()))
        if actual != shape:
            raise SourceError(
                file.path, f"tensor {stored.name} is {list(actual)}, the configuration says {list(shape)}"
            )
        order = _row_order(hf_name, config)
        tensors.append(_Weights(file.path, stored, order).as_tensor(hf_name, shape))
    return tensors


def gguf_name(hf_name: str) -> str:
    """A tensor's name in GGUF."""
    if hf_name in _TOP:
        return _TOP[hf_name]
    _, _, layer, rest = hf_name.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest.removesuffix('.weight')]}.weight"


def _row_order(hf_name: str, config: LlamaConfig) -> NDArray[np.intp] | None:
    """GGUF interleaves the rotary halves of query and key rows; this puts them back in halves."""
    heads = {
        "q_proj.weight": config.num_attention_heads,
        "k_proj.weight": config.num_key_value_heads,
    }.get(hf_name.rpartition("self_attn.")[2])
    if heads is None:
        return None
    rows = np.arange(heads * config.head_dim).reshape(heads, config.head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


class _Weights:
    """One stored tensor, read in chunks of whole rows."""

    def __init__(self, path: Path, stored: ReaderTensor, order: NDArray[np.intp] | None) -> None:
        self._path = path
        self._stored = stored
        self._order = order
        self._kind = stored.tensor_type.name

    def as_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if self._kind == "F16":
            return Tensor(name, "F16", shape, self._raw)
        if self._kind == "F32" and any(np.any(values.view(np.uint32) & 0xFFFF) for values in self._values()):
            return Tensor(name, "F32", shape, self._raw)
        if self._kind == "BF16":
            return Tensor(name, "BF16", shape, self._raw)
        return Tensor(name, "BF16", shape, self._rounded)

    def _rows(self) -> Iterator[NDArray[np.generic]]:
        data = np.atleast_2d(self._stored.data)
        width = max(self._stored.n_elements // len(data), 1)
        step = max(CHUNK_VALUES // width, 1)
        for start in range(0, len(data), step):
            window = slice(start, start + step)
            yield data[window] if self._order is None else data[self._order[window]]

    def _raw(self) -> Iterator[bytes]:
        """The bytes as stored, once the values proved finite."""
        for rows in self._rows():
            self._finite(quants.dequantize(rows, self._stored.tensor_type))
            yield rows.tobytes()

    def _values(self) -> Iterator[NDArray[np.float32]]:
        for rows in self._rows():
            yield self._finite(quants.dequantize(rows, self._stored.tensor_type))

    def _rounded(self) -> Iterator[bytes]:
        for values in self._values():
            yield to_bfloat16(values).tobytes()

    def _finite(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.isfinite(values).all():
            raise SourceError(self._path, f"tensor {self._stored.name} holds values that are not finite")
        return values


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 values to bfloat16, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
