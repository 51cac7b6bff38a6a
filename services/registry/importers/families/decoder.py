"""What every family shares: the sizes of a decoder-only transformer and the tensors that follow from them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from services.registry.importers.families.rope import (
    DefaultRope,
    Llama3Rope,
    RopeFrequencies,
    rope_parameters,
)

Shapes: TypeAlias = dict[str, tuple[int, ...]]

MAX_LAYERS = 4096


class DecoderConfig(BaseModel):
    """The keys of config.json that shape a model; a setting that nobody can serve is refused by its key.

    A family is a subclass: its defaults, its further keys, and the tensors of one layer.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    FAMILY: ClassVar[str]
    ARCHITECTURE: ClassVar[str]
    DEFAULTS: ClassVar[dict[str, Any]] = {}

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: int = Field(gt=0, le=MAX_LAYERS)
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    rms_norm_eps: float = Field(gt=0)
    tie_word_embeddings: bool = False
    quantization_config: None = Field(None, exclude=True)
    # Not a key of Hugging Face's. Kept where it is said; left out it is float32, as in all that they publish.
    rope_frequencies: RopeFrequencies = Field("float32", exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: dict[str, Any]) -> dict[str, Any]:
        data = cls.DEFAULTS | data
        return cls.completed({key: value for key, value in data.items() if value is not None})

    @model_validator(mode="after")
    def _fits_together(self) -> DecoderConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise ValueError("head_dim must be even")
        return self

    @classmethod
    def completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Fill in what depends on other keys; `data` is unchecked yet and holds no null."""
        heads, hidden = data.get("num_attention_heads"), data.get("hidden_size")
        sizes = {"num_key_value_heads": heads}
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            sizes["head_dim"] = hidden // heads
        return sizes | data

    @property
    def query_rows(self) -> int:
        """Rows of the query projection."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_rows(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.num_key_value_heads * self.head_dim

    def tensor_shapes(self) -> Shapes:
        """Every tensor the model has, by its Hugging Face name."""
        hidden, vocab = self.hidden_size, self.vocab_size
        shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden)}
        for layer in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self.layer(layer).items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocab, hidden)
        return shapes

    def layer(self, index: int) -> Shapes:
        """The tensors of one layer."""
        return self.norms() | self.attention() | self.feed_forward(index)

    def norms(self) -> Shapes:
        """Norms of the residual stream."""
        return dict.fromkeys(
            ("input_layernorm.weight", "post_attention_layernorm.weight"), (self.hidden_size,)
        )

    def attention(self) -> Shapes:
        """Projections of the attention."""
        hidden = self.hidden_size
        return {
            "self_attn.q_proj.weight": (self.query_rows, hidden),
            "self_attn.k_proj.weight": (self.key_rows, hidden),
            "self_attn.v_proj.weight": (self.key_rows, hidden),
            "self_attn.o_proj.weight": (hidden, self.query_rows),
        }

    def feed_forward(self, index: int) -> Shapes:
        """The feed-forward part of one layer."""
        return gated("mlp", self.hidden_size, self.intermediate_size)

    def query_key_norms(self) -> Shapes:
        """Norms of each query and key head, where a family has them."""
        return dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (self.head_dim,))


class SiluConfig(DecoderConfig):
    """The families after Llama: gated SiLU, and one rotation for all layers."""

    hidden_act: Literal["silu"] = "silu"
    rope_parameters: Annotated[DefaultRope | Llama3Rope, Field(discriminator="rope_type")]

    @classmethod
    def completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Name the rotary settings in one spelling."""
        return super().completed(data) | {"rope_parameters": rope_parameters(data)}


def gated(prefix: str, hidden: int, inner: int) -> Shapes:
    """A gated feed-forward's three matrices."""
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }
