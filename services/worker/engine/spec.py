"""A decoder-only transformer as data: what every family module reads its config.json into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.worker.engine.errors import EngineError, UnsupportedModelError
from services.worker.engine.rope import read_rope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.worker.engine.rope import RopeSpec

    Config = Mapping[str, Any]

ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


@dataclass(frozen=True, slots=True)
class Dense:
    """One gated feed-forward part."""

    inner: int


@dataclass(frozen=True, slots=True)
class Experts:
    """`count` gated parts, of which a router picks `chosen` for each token.

    Their weights in the sum are the router's probabilities, scaled to a sum of 1 if `normalised`.
    """

    inner: int
    count: int
    chosen: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer; a token sees itself and the `window - 1` tokens before it."""

    rope: RopeSpec
    feed_forward: Dense | Experts
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Sizes and switches of a model.

    head_norms: each query and key head is normed before it is rotated.
    output_norms: what attention and feed-forward put out is normed before it joins the residual stream.
    norm_offset: what is added to every norm's weight as it is stored.
    attention_cap, logit_cap: bounds c of scores and logits x, which become c * tanh(x / c).
    """

    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    context_length: int
    tied_head: bool
    activation: str
    attention_scale: float
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    output_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_cap: float | None = None
    logit_cap: float | None = None


def read_spec(config: Config, layers: tuple[LayerSpec, ...]) -> ModelSpec:
    """Read what all families name alike; the caller replaces what sets its own apart."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise EngineError(f"config.json: {heads} heads cannot share {kv_heads} KV heads of {head_dim}")
    return ModelSpec(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        layers=layers,
        norm_eps=float(config["rms_norm_eps"]),
        context_length=int(config["max_position_embeddings"]),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        activation=_activation(config),
        attention_scale=head_dim**-0.5,
    )


def equal_layers(config: Config, window: int | None = None) -> tuple[LayerSpec, ...]:
    """Dense layers that are all alike."""
    layer = LayerSpec(read_rope(config), Dense(int(config["intermediate_size"])), window)
    return (layer,) * int(config["num_hidden_layers"])


def _activation(config: Config) -> str:
    key = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    name = str(config.get(key, "silu"))
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"{key} {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return name
