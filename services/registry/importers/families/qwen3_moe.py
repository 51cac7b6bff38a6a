"""Qwen3 with routed experts in place of the feed-forward part."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, PositiveInt, model_validator

from services.registry.importers.families.decoder import Shapes, gated
from services.registry.importers.families.qwen3 import Qwen3Config

MAX_EXPERTS = 4096


class Qwen3MoeConfig(Qwen3Config):
    """A Qwen3-MoE: layer `i` is dense where `mlp_only_layers` or `decoder_sparse_step` say so."""

    FAMILY: ClassVar[str] = "qwen3_moe"
    ARCHITECTURE: ClassVar[str] = "Qwen3MoeForCausalLM"
    DEFAULTS: ClassVar[dict[str, Any]] = {}

    moe_intermediate_size: PositiveInt
    num_experts: int = Field(gt=0, le=MAX_EXPERTS)
    num_experts_per_tok: PositiveInt
    norm_topk_prob: bool = False
    decoder_sparse_step: PositiveInt = 1
    mlp_only_layers: list[int] = Field(default_factory=list)

    @classmethod
    def completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Read transformers 5's name for the number of experts, too."""
        if "num_local_experts" in data:
            data = {"num_experts": data["num_local_experts"]} | data
        return super().completed(data)

    @model_validator(mode="after")
    def _routes(self) -> Qwen3MoeConfig:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError("num_experts_per_tok must be at most num_experts")
        return self

    def is_sparse(self, index: int) -> bool:
        """Whether a layer routes."""
        return index not in self.mlp_only_layers and (index + 1) % self.decoder_sparse_step == 0

    def feed_forward(self, index: int) -> Shapes:
        """A router and its experts, or the dense matrices."""
        if not self.is_sparse(index):
            return super().feed_forward(index)
        shapes: Shapes = {"mlp.gate.weight": (self.num_experts, self.hidden_size)}
        for expert in range(self.num_experts):
            shapes |= gated(f"mlp.experts.{expert}", self.hidden_size, self.moe_intermediate_size)
        return shapes
