"""A Llama spelled out without pages, batches or fused weights, to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from services.worker.engine.rope import inverse_frequencies

if TYPE_CHECKING:
    from services.worker.engine.spec import ModelSpec


def reference_logits(spec: ModelSpec, tensors: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Logits after every token: [tokens, vocabulary]."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + spec.norm_eps).sqrt() * tensors[f"{name}.weight"]

    count, size, half = len(ids), spec.head_dim, spec.head_dim // 2
    angles = torch.outer(torch.arange(count).float(), inverse_frequencies(spec.layers[0].rope, size))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        left, right = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    x = tensors["model.embed_tokens.weight"][ids]
    causal = torch.ones(count, count).tril().log()
    for layer in range(len(spec.layers)):
        prefix = f"model.layers.{layer}"
        h = norm(f"{prefix}.input_layernorm", x)
        q, k, v = (linear(f"{prefix}.self_attn.{name}_proj", h) for name in "qkv")
        q, k, v = (part.view(count, -1, size).transpose(0, 1) for part in (q, k, v))
        k, v = (part.repeat_interleave(spec.heads // spec.kv_heads, 0) for part in (k, v))
        scores = rotated(q) @ rotated(k).transpose(1, 2) / size**0.5 + causal
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        x = x + linear(f"{prefix}.self_attn.o_proj", mixed)
        h = norm(f"{prefix}.post_attention_layernorm", x)
        gate, up = linear(f"{prefix}.mlp.gate_proj", h), linear(f"{prefix}.mlp.up_proj", h)
        x = x + linear(f"{prefix}.mlp.down_proj", F.silu(gate) * up)
    head = "model.embed_tokens" if spec.tied_head else "lm_head"
    return linear(head, norm("model.norm", x))
