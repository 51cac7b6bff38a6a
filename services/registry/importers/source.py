"""What every importer produces: a model whose tensors are read only while they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kit.artifacts import ArtifactError

if TYPE_CHECKING:
    from services.registry.importers.families.decoder import DecoderConfig

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}

Progress: TypeAlias = Callable[[str], None]
Chunks: TypeAlias = Callable[[], Iterator[bytes | memoryview]]


class SourceError(ArtifactError):
    """A source that cannot become an artifact; names the file and what in it is at fault."""


@dataclass(frozen=True)
class Tensor:
    """One tensor to write: its safetensors dtype, its shape, and its bytes when asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Chunks

    @property
    def size_bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class ModelSource:
    """A model that was checked and is ready to be written."""

    config: DecoderConfig
    config_json: str
    tensors: list[Tensor]
    tokenizer_json: str
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    origin: str
    licence: str
