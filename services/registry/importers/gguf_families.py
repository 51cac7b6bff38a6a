"""What GGUF changes about each family: key names, tensor names, and values that its converters alter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.registry.importers.families.gemma3 import (
    GLOBAL,
    GLOBAL_THETA,
    PATTERN,
    WINDOWED,
    Gemma3Config,
    layer_types,
)
from services.registry.importers.families.llama import LlamaConfig
from services.registry.importers.families.mistral import MistralConfig
from services.registry.importers.families.qwen2 import Qwen2Config
from services.registry.importers.families.qwen3 import Qwen3Config
from services.registry.importers.families.qwen3_moe import Qwen3MoeConfig
from services.registry.importers.families.rope import DEFAULT_THETA
from services.registry.importers.gguf_rope import frequency_scaling, shortest
from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.registry.importers.families.decoder import DecoderConfig
    from services.registry.importers.gguf_file import GgufFile

TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def _nothing_more(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class GgufFamily:
    """One GGUF architecture; `describe` adds the keys of config.json that the family has of its own."""

    config: type[DecoderConfig]
    describe: Callable[[GgufFile, dict[str, Any]], dict[str, Any]] = _nothing_more
    names: dict[str, str] = field(default_factory=dict)
    # Rotary halves of query and key rows are interleaved.
    interleaved: bool = False
    # Added to every norm's weight by the converter.
    norm_offset: float = 0.0

    @property
    def layer_names(self) -> dict[str, str]:
        """A layer's modules: Hugging Face's name to GGUF's."""
        return _LAYER_NAMES | self.names


def naming(config: type[DecoderConfig]) -> dict[str, Any]:
    """How config.json names a family."""
    return {"architectures": [config.ARCHITECTURE], "model_type": config.FAMILY}


def _llama(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """A Mistral is a Llama to GGUF; its window, where the file has one, tells it apart."""
    if file.metadata("llama.expert_count", int, 0):
        raise SourceError(file.path, "metadata llama.expert_count: mixtures of experts are unsupported")
    window = file.metadata("llama.attention.sliding_window", int, 0)
    scaling = frequency_scaling(file, config)
    return scaling | (naming(MistralConfig) | {"sliding_window": window} if window else {})


def _qwen3_moe(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Every layer routes, and the chosen experts' weights add up to one: GGUF knows no other Qwen3-MoE."""
    return {
        "num_experts": file.metadata("qwen3moe.expert_count", int),
        "num_experts_per_tok": file.metadata("qwen3moe.expert_used_count", int),
        "moe_intermediate_size": file.metadata("qwen3moe.expert_feed_forward_length", int),
        "norm_topk_prob": True,
    }


def _gemma3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    window = file.metadata("gemma3.attention.sliding_window", int, 0)
    pattern = file.find("gemma3.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        kinds = [WINDOWED if windowed else GLOBAL for windowed in pattern]
    else:
        kinds = layer_types(config["num_hidden_layers"], (pattern or PATTERN) if window else 1)
    local = file.metadata("gemma3.rope.freq_base_swa", float, DEFAULT_THETA)
    cap = file.metadata("gemma3.final_logit_softcapping", float, 0.0)
    return {
        "query_pre_attn_scalar": _query_scalar(config),
        "final_logit_softcapping": shortest(cap) or None,
        "layer_types": kinds,
        "rope_parameters": {
            GLOBAL: _gemma3_rope(file),
            WINDOWED: {"rope_type": "default", "rope_theta": shortest(local)},
        },
    } | ({"sliding_window": window} if window else {})


def _query_scalar(config: dict[str, Any]) -> int:
    """GGUF leaves it out: only the 27B model divides by the width per head instead of the head's size."""
    if config["num_hidden_layers"] == 62:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _gemma3_rope(file: GgufFile) -> dict[str, Any]:
    theta = shortest(file.metadata("gemma3.rope.freq_base", float, GLOBAL_THETA))
    kind = file.metadata("gemma3.rope.scaling.type", str, "none")
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind != "linear":
        raise SourceError(
            file.path, f"metadata gemma3.rope.scaling.type: {kind} is unsupported; supported: none, linear"
        )
    factor = shortest(file.metadata("gemma3.rope.scaling.factor", float))
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}


GGUF_FAMILIES = {
    "llama": GgufFamily(LlamaConfig, _llama, interleaved=True),
    "qwen2": GgufFamily(Qwen2Config),
    "qwen3": GgufFamily(Qwen3Config, names=_HEAD_NORMS),
    "qwen3moe": GgufFamily(Qwen3MoeConfig, _qwen3_moe, _HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"}),
    "gemma3": GgufFamily(
        Gemma3Config,
        _gemma3,
        _HEAD_NORMS
        | {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        norm_offset=1.0,
    ),
}
