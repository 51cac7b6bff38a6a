"""One block's weights, read by the names that Hugging Face gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from services.worker.engine.feed_forward import Gated, Routed
from services.worker.engine.linear import make_linear
from services.worker.engine.spec import Experts

if TYPE_CHECKING:
    from services.worker.engine.linear import Linear
    from services.worker.engine.spec import ModelSpec
    from services.worker.engine.weights import Checkpoint


@dataclass(frozen=True, slots=True)
class Block:
    """Attention and feed-forward part; query, key and value are one product. Norms are float32.

    Where a family lacks a norm it is None; head_norm: [heads + kv_heads, head_dim], queries before keys.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    head_norm: torch.Tensor | None
    attention_out: Linear
    attention_out_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: Gated | Routed
    mlp_out_norm: torch.Tensor | None


class BlockLoader:
    """Reads the blocks of one checkpoint; `gated` computes their feed-forward parts."""

    def __init__(self, spec: ModelSpec, weights: Checkpoint, gated: type[Gated] = Gated) -> None:
        self._spec = spec
        self._weights = weights
        self._gated_type = gated

    def load(self, index: int) -> Block:
        """Read one block."""
        spec, prefix = self._spec, f"model.layers.{index}"
        attention, hidden = f"{prefix}.self_attn", spec.hidden_size
        heads, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        # Where outputs are normed, the norm before the feed-forward part goes by another name.
        before_mlp = "pre_feedforward_layernorm" if spec.output_norms else "post_attention_layernorm"
        return Block(
            attention_norm=self.norm(f"{prefix}.input_layernorm", hidden),
            qkv=self._linear(attention, {"q": heads, "k": kv, "v": kv}, hidden, bias=spec.qkv_bias),
            head_norm=self._head_norm(attention) if spec.head_norms else None,
            attention_out=self._linear(attention, {"o": hidden}, heads, bias=spec.attention_out_bias),
            attention_out_norm=self._out_norm(f"{prefix}.post_attention_layernorm"),
            mlp_norm=self.norm(f"{prefix}.{before_mlp}", hidden),
            mlp=self._feed_forward(index, f"{prefix}.mlp"),
            mlp_out_norm=self._out_norm(f"{prefix}.post_feedforward_layernorm"),
        )

    def norms(self, index: int) -> dict[str, torch.Tensor]:
        """Read a block's norms alone; head norms once, not for each head. A norm it lacks is left out."""
        spec, prefix = self._spec, f"model.layers.{index}"
        names = {"ATTENTION_NORM": "input_layernorm", "MLP_NORM": "post_attention_layernorm"}
        if spec.output_norms:
            names |= {
                "MLP_NORM": "pre_feedforward_layernorm",
                "ATTENTION_OUT_NORM": "post_attention_layernorm",
                "MLP_OUT_NORM": "post_feedforward_layernorm",
            }
        found = {kind: self.norm(f"{prefix}.{name}", spec.hidden_size) for kind, name in names.items()}
        for kind, name in {"QUERY_NORM": "q", "KEY_NORM": "k"}.items():
            if spec.head_norms:
                found[kind] = self.norm(f"{prefix}.self_attn.{name}_norm", spec.head_dim)
        return found

    def norm(self, name: str, size: int) -> torch.Tensor:
        """Read a norm's weight."""
        return self._weights.take(f"{name}.weight", size, dtype=torch.float32) + self._spec.norm_offset

    def _out_norm(self, name: str) -> torch.Tensor | None:
        return self.norm(name, self._spec.hidden_size) if self._spec.output_norms else None

    def _head_norm(self, module: str) -> torch.Tensor:
        spec = self._spec
        query, key = (self.norm(f"{module}.{name}_norm", spec.head_dim) for name in "qk")
        return torch.cat((query.expand(spec.heads, -1), key.expand(spec.kv_heads, -1)))

    def _feed_forward(self, index: int, module: str) -> Gated | Routed:
        part, hidden = self._spec.layers[index].feed_forward, self._spec.hidden_size
        if not isinstance(part, Experts):
            return self._gated(module, part.inner)
        router = self._weights.take(f"{module}.gate.weight", part.count, hidden, dtype=torch.float32)
        experts = [self._gated(f"{module}.experts.{expert}", part.inner) for expert in range(part.count)]
        return Routed(part, router, experts)

    def _gated(self, module: str, inner: int) -> Gated:
        spec, bias = self._spec, self._spec.mlp_bias
        gate_up = self._linear(module, {"gate": inner, "up": inner}, spec.hidden_size, bias=bias)
        down = self._linear(module, {"down": spec.hidden_size}, inner, bias=bias)
        return self._gated_type(gate_up, down, spec.activation)

    def _linear(self, module: str, parts: dict[str, int], width: int, *, bias: bool) -> Linear:
        names = {f"{module}.{name}_proj": rows for name, rows in parts.items()}
        weight = self._weights.join({f"{name}.weight": rows for name, rows in names.items()}, width)
        offset = None
        if bias:
            offset = self._weights.join({f"{name}.bias": rows for name, rows in names.items()})
        return make_linear(weight, offset)
