"""The Llama family as Hugging Face configures it: which settings are supported, which tensors follow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from pathlib import Path

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)


class Llama3Rope(BaseModel):
    """Llama 3's stretch of the rotary frequencies."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    factor: float = Field(gt=0)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_max_position_embeddings: PositiveInt


class LlamaConfig(BaseModel):
    """The keys of config.json that shape a Llama model; settings nobody can serve are refused by name."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    rms_norm_eps: float = Field(gt=0)
    tie_word_embeddings: bool = False
    hidden_act: Literal["silu"] = "silu"
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    quantization_config: None = None
    rope_type: Literal["default", "llama3"]
    rope_scaling: Llama3Rope | None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Apply the defaults that depend on other keys, and both spellings of the rope settings."""
        data = {key: value for key, value in data.items() if value is not None}
        heads = data.get("num_attention_heads")
        data.setdefault("num_key_value_heads", heads)
        if isinstance(heads, int) and heads > 0 and isinstance(data.get("hidden_size"), int):
            data.setdefault("head_dim", data["hidden_size"] // heads)
        rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise ValueError("rope_parameters and rope_scaling must be objects")
        kind = rope.get("rope_type", rope.get("type", "default"))
        return data | {"rope_type": kind, "rope_scaling": rope if kind == "llama3" else None}

    @model_validator(mode="after")
    def _fits_together(self) -> LlamaConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise ValueError("head_dim must be even")
        return self

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the model has, by its Hugging Face name."""
        hidden, vocab = self.hidden_size, self.vocab_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
        for layer in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer_shapes().items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocab, hidden)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = (
            self.num_attention_heads * self.head_dim,
            self.num_key_value_heads * self.head_dim,
        )
        return {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }


def parse_config(path: Path, text: str | bytes) -> LlamaConfig:
    """Check a Hugging Face config; `path` is the file to blame."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise SourceError(path, "is not a JSON object")
        architectures = document.get("architectures") or ["none named"]
        if architectures[0] not in SUPPORTED_ARCHITECTURES:
            supported = ", ".join(SUPPORTED_ARCHITECTURES)
            raise SourceError(path, f"architecture {architectures[0]} is unsupported; supported: {supported}")
        return LlamaConfig.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "config"
        raise SourceError(path, f"{key}: {first['msg']}") from error
    except ValueError as error:
        raise SourceError(path, f"is not JSON: {error}") from error
