"""A model's shape, read from a config.json with Hugging Face keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.worker.engine.errors import EngineError
from services.worker.engine.rope import RopeSpec, read_rope


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and switches of a decoder-only transformer."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    tied_head: bool
    attention_bias: bool
    mlp_bias: bool
    activation: str
    rope: RopeSpec


def read_spec(config: dict[str, Any]) -> ModelSpec:
    """Read the shape; what an older checkpoint leaves out is derived as its authors did."""
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        spec = ModelSpec(
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            norm_eps=float(config["rms_norm_eps"]),
            context_length=int(config["max_position_embeddings"]),
            tied_head=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            activation=str(config.get("hidden_act", "silu")),
            rope=read_rope(config),
        )
    except KeyError as missing:
        raise EngineError(f"config.json lacks {missing}") from None
    if spec.heads % spec.kv_heads or spec.head_dim % 2:
        raise EngineError(
            f"config.json: {spec.heads} heads cannot share {spec.kv_heads} KV heads of {spec.head_dim}"
        )
    return spec
