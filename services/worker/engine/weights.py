"""Reading tensors out of an artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from services.worker.engine.errors import BadWeightsError

if TYPE_CHECKING:
    from pathlib import Path


class Checkpoint:
    """The memory-mapped tensors of one model.safetensors, checked by name and shape as they are taken."""

    def __init__(self, path: Path, dtype: torch.dtype, device: str) -> None:
        try:
            self._file: Any = safe_open(path, framework="pt", device="cpu")
        except (OSError, SafetensorError) as error:
            raise BadWeightsError(f"{path.name} cannot be read: {error}") from error
        self._names = frozenset(self._file.keys())  # type: ignore[no-untyped-call]
        self.dtype = dtype
        self.device = device

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the tensor `name` of that shape, in the engine's precision unless another is given."""
        return self._read(name, shape).to(device=self.device, dtype=dtype or self.dtype)

    def stored(self, name: str, *shape: int) -> torch.Tensor:
        """Return the tensor as it lies in the file, mapped; one that is no float32 or bfloat16 as float32."""
        tensor = self._read(name, shape)
        known = tensor.dtype in (torch.float32, torch.bfloat16)
        return (tensor if known else tensor.float()).contiguous()

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._names:
            raise BadWeightsError(f"tensor {name} is missing")
        found = tuple(self._file.get_slice(name).get_shape())
        if found != shape:
            raise BadWeightsError(f"tensor {name} has shape {list(found)}, expected {list(shape)}")
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def join(self, parts: dict[str, int], *tail: int) -> torch.Tensor:
        """Concatenate tensors of `rows` x tail, named in order, along their rows."""
        return torch.cat([self.take(name, rows, *tail) for name, rows in parts.items()])
