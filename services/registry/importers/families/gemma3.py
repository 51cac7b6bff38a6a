"""Gemma 3's text model: windowed and global layers, head norms, norms after each part, scaled embeddings.

The norms' weights are stored less one, as Hugging Face has them: the forward multiplies by 1 + weight.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from services.registry.importers.families.decoder import MAX_LAYERS, DecoderConfig, Shapes
from services.registry.importers.families.rope import (
    DEFAULT_THETA,
    DefaultRope,
    LinearRope,
    object_of,
    spelled_out,
)

WINDOWED, GLOBAL = "sliding_attention", "full_attention"
GLOBAL_THETA = 1_000_000.0
PATTERN = 6


class Gemma3Rope(BaseModel):
    """Rotary settings by the kind of layer."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    full_attention: Annotated[DefaultRope | LinearRope, Field(discriminator="rope_type")]
    sliding_attention: DefaultRope


class Gemma3Config(DecoderConfig):
    """A Gemma 3 text model."""

    FAMILY: ClassVar[str] = "gemma3_text"
    ARCHITECTURE: ClassVar[str] = "Gemma3ForCausalLM"
    # Published configurations leave out what equals transformers' defaults.
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    }

    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    attention_bias: Literal[False] = False
    use_bidirectional_attention: Literal[False] = False
    query_pre_attn_scalar: int | float = Field(256, gt=0)
    attn_logit_softcapping: float | None = Field(None, gt=0)
    final_logit_softcapping: float | None = Field(None, gt=0)
    sliding_window: PositiveInt
    layer_types: list[Literal["sliding_attention", "full_attention"]]
    rope_parameters: Gemma3Rope

    @classmethod
    def completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Name each layer's kind and rotation."""
        pattern = data.get("sliding_window_pattern", data.get("_sliding_window_pattern", PATTERN))
        return (
            {"layer_types": layer_types(data.get("num_hidden_layers"), pattern)}
            | super().completed(data)
            | {"rope_parameters": _rope(data)}
        )

    @model_validator(mode="after")
    def _layers_are_named(self) -> Gemma3Config:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} of {self.num_hidden_layers} layers")
        return self

    def norms(self) -> Shapes:
        """Add the norms around the feed-forward part."""
        return super().norms() | dict.fromkeys(
            ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"), (self.hidden_size,)
        )

    def attention(self) -> Shapes:
        """Add the head norms."""
        return super().attention() | self.query_key_norms()


def layer_types(layers: object, pattern: object) -> list[str]:
    """Every `pattern`-th layer is global, the others are windowed; empty for what is no such number."""
    if not isinstance(layers, int) or not isinstance(pattern, int) or pattern < 1 or layers > MAX_LAYERS:
        return []
    return [WINDOWED if (index + 1) % pattern else GLOBAL for index in range(layers)]


def _rope(data: dict[str, Any]) -> dict[str, Any]:
    both = object_of(data, "rope_parameters")
    full = object_of(both, GLOBAL) or object_of(data, "rope_scaling")
    return {
        GLOBAL: spelled_out(full, data.get("rope_theta", GLOBAL_THETA)),
        WINDOWED: spelled_out(object_of(both, WINDOWED), data.get("rope_local_base_freq", DEFAULT_THETA)),
    }
