"""Qwen3-MoE: a Qwen3 with routed experts in place of the feed-forward part of all or some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.worker.engine.errors import EngineError
from services.worker.engine.families import qwen3
from services.worker.engine.spec import Experts, equal_layers

if TYPE_CHECKING:
    from services.worker.engine.spec import Config, ModelSpec


def read(config: Config) -> ModelSpec:
    """Read a Qwen3-MoE; layer i routes unless `mlp_only_layers` or `decoder_sparse_step` say otherwise."""
    # transformers 5 writes the number of experts under another name.
    count = config["num_experts"] if "num_experts" in config else config["num_local_experts"]
    experts = Experts(
        inner=int(config["moe_intermediate_size"]),
        count=int(count),
        chosen=int(config["num_experts_per_tok"]),
        normalised=bool(config.get("norm_topk_prob", False)),
    )
    if not 1 <= experts.chosen <= experts.count:
        raise EngineError(f"config.json: {experts.chosen} of {experts.count} experts cannot be chosen")
    step, dense = int(config.get("decoder_sparse_step", 1)), config.get("mlp_only_layers") or ()
    layers = (
        layer if index in dense or (index + 1) % step else replace(layer, feed_forward=experts)
        for index, layer in enumerate(equal_layers(config))
    )
    return qwen3.with_layers(config, tuple(layers))
