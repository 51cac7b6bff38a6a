"""Qwen3: norms of each query and key head, no biases, and heads of a size of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from services.registry.importers.families.qwen2 import QwenConfig

if TYPE_CHECKING:
    from services.registry.importers.families.decoder import Shapes


class Qwen3Config(QwenConfig):
    """A dense Qwen3."""

    FAMILY: ClassVar[str] = "qwen3"
    ARCHITECTURE: ClassVar[str] = "Qwen3ForCausalLM"
    DEFAULTS: ClassVar[dict[str, Any]] = {"head_dim": 128}

    attention_bias: Literal[False] = False

    def attention(self) -> Shapes:
        """Add the head norms."""
        return super().attention() | self.query_key_norms()
