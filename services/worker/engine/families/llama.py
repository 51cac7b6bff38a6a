"""The Llama family: RMS norm, rotary positions, grouped-query attention, gated SiLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from services.worker.engine.attention import Group, attend, plan_groups
from services.worker.engine.errors import UnsupportedModelError
from services.worker.engine.linear import make_head, make_linear
from services.worker.engine.rope import inverse_frequencies, rotate_, rotation

if TYPE_CHECKING:
    from services.worker.engine.batch import Batch, Ints
    from services.worker.engine.kv import PagePool
    from services.worker.engine.linear import Linear
    from services.worker.engine.spec import ModelSpec
    from services.worker.engine.weights import Checkpoint


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights; query, key and value are one product, and so are gate and up."""

    attention_norm: torch.Tensor
    qkv: Linear
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of one step share."""

    cos: torch.Tensor
    sin: torch.Tensor
    written: torch.Tensor
    groups: list[Group]


class LlamaForward:
    """A Llama model over paged KV. The residual stream is float32, products are in the engine's precision."""

    def __init__(self, spec: ModelSpec, weights: Checkpoint, pool: PagePool) -> None:
        self._spec = spec
        self._pool = pool
        self._dtype = weights.dtype
        self._frequencies = inverse_frequencies(spec.rope, spec.head_dim).to(weights.device)
        shape = (spec.vocab_size, spec.hidden_size)
        self._embedding = weights.take("model.embed_tokens.weight", *shape)
        self._layers = [_load_layer(spec, weights, index) for index in range(spec.layers)]
        self._norm = weights.take("model.norm.weight", spec.hidden_size, dtype=torch.float32)
        head = self._embedding if spec.tied_head else weights.take("lm_head.weight", *shape)
        self._head = make_head(head)

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the sampled tokens: [sampled, vocabulary]."""
        step = self._prepare(batch)
        x = F.embedding(self._on_device(batch.token_ids), self._embedding).float()
        for index, layer in enumerate(self._layers):
            x += self._attention(index, layer, self._normed(x, layer.attention_norm), step)
            x += self._mlp(layer, self._normed(x, layer.mlp_norm))
        return self._head(self._normed(x[self._on_device(batch.sampled)], self._norm))

    def _prepare(self, batch: Batch) -> Step:
        spec = self._spec
        cos, sin = rotation(self._on_device(batch.positions), self._frequencies, self._dtype)
        groups = plan_groups(batch, self._pool, spec.heads // spec.kv_heads)
        return Step(cos, sin, self._pool.vector_index(batch.cells), groups)

    def _attention(self, index: int, layer: Layer, x: torch.Tensor, step: Step) -> torch.Tensor:
        spec = self._spec
        heads = layer.qkv(x).view(len(x), -1, spec.head_dim)
        rotate_(heads[:, : spec.heads + spec.kv_heads], step.cos, step.sin)
        self._pool.write(index, step.written, heads[:, spec.heads :])
        return layer.attention_out(attend(heads[:, : spec.heads], self._pool, index, step.groups))

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(x).chunk(2, -1)
        return layer.down(F.silu(gate).mul_(up))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self._spec.norm_eps).to(self._dtype)

    def _on_device(self, values: Ints) -> torch.Tensor:
        return torch.from_numpy(values).to(self._embedding.device)


def build(spec: ModelSpec, weights: Checkpoint, pool: PagePool) -> LlamaForward:
    """Build the forward, refusing what a Llama does not have."""
    if spec.activation != "silu":
        raise UnsupportedModelError(
            f"hidden_act {spec.activation!r} is not supported for Llama; supported: silu"
        )
    return LlamaForward(spec, weights, pool)


def _load_layer(spec: ModelSpec, weights: Checkpoint, index: int) -> Layer:
    prefix, hidden = f"model.layers.{index}", spec.hidden_size
    heads, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def load(module: str, parts: dict[str, int], width: int, *, bias: bool) -> Linear:
        names = {f"{prefix}.{module}.{name}_proj": rows for name, rows in parts.items()}
        weight = weights.join({f"{name}.weight": rows for name, rows in names.items()}, width)
        offset = weights.join({f"{name}.bias": rows for name, rows in names.items()}) if bias else None
        return make_linear(weight, offset)

    def norm(name: str) -> torch.Tensor:
        return weights.take(f"{prefix}.{name}.weight", hidden, dtype=torch.float32)

    return Layer(
        attention_norm=norm("input_layernorm"),
        qkv=load("self_attn", {"q": heads, "k": kv, "v": kv}, hidden, bias=spec.attention_bias),
        attention_out=load("self_attn", {"o": hidden}, heads, bias=spec.attention_bias),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=load(
            "mlp", dict.fromkeys(("gate", "up"), spec.intermediate_size), hidden, bias=spec.mlp_bias
        ),
        down=load("mlp", {"down": hidden}, spec.intermediate_size, bias=spec.mlp_bias),
    )
