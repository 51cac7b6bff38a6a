"""Qwen2: a Llama with biases on query, key and value."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from services.registry.importers.families.decoder import Shapes, SiluConfig


class QwenConfig(SiluConfig):
    """What the Qwen families share: a window is configured but switched off."""

    use_sliding_window: Literal[False] = False
    sliding_window: None = None

    @classmethod
    def completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Drop the size of the window that is not used."""
        return super().completed(data) | {"sliding_window": None}


class Qwen2Config(QwenConfig):
    """A Qwen2 or Qwen2.5."""

    FAMILY: ClassVar[str] = "qwen2"
    ARCHITECTURE: ClassVar[str] = "Qwen2ForCausalLM"

    def attention(self) -> Shapes:
        """Add the biases."""
        return super().attention() | {
            "self_attn.q_proj.bias": (self.query_rows,),
            "self_attn.k_proj.bias": (self.key_rows,),
            "self_attn.v_proj.bias": (self.key_rows,),
        }
