"""Gemma 3's text model: windowed and global layers, norms around each part, scaled embeddings, gated GELU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.worker.engine.errors import EngineError
from services.worker.engine.rope import rope_of
from services.worker.engine.spec import Dense, LayerSpec, read_spec

if TYPE_CHECKING:
    from services.worker.engine.rope import RopeSpec
    from services.worker.engine.spec import Config, ModelSpec

WINDOWED, GLOBAL = "sliding_attention", "full_attention"


def read(config: Config) -> ModelSpec:
    """Read a Gemma 3 text model."""
    ropes = _ropes(config)
    windows = {WINDOWED: int(config["sliding_window"]), GLOBAL: None}
    inner = Dense(int(config["intermediate_size"]))
    layers = tuple(LayerSpec(ropes[kind], inner, windows[kind]) for kind in _kinds(config))
    return replace(
        read_spec(config, layers),
        tied_head=bool(config.get("tie_word_embeddings", True)),
        attention_scale=float(config["query_pre_attn_scalar"]) ** -0.5,
        head_norms=True,
        output_norms=True,
        norm_offset=1.0,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        attention_cap=config.get("attn_logit_softcapping"),
        logit_cap=config.get("final_logit_softcapping"),
    )


def _kinds(config: Config) -> list[str]:
    """The kind of each layer, named, or by every which one is global."""
    count = int(config["num_hidden_layers"])
    if kinds := config.get("layer_types"):
        if len(kinds) != count or not {WINDOWED, GLOBAL}.issuperset(kinds):
            raise EngineError(f"config.json: layer_types must name {count} of {WINDOWED} and {GLOBAL}")
        return list(kinds)
    period = int(config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6)))
    return [WINDOWED if (index + 1) % period else GLOBAL for index in range(count)]


def _ropes(config: Config) -> dict[str, RopeSpec]:
    """Rotations by kind; in the older spelling `rope_scaling` is of the global layers alone."""
    both = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    return {
        GLOBAL: rope_of(config, both.get(GLOBAL) or scaling, config.get("rope_theta", 1_000_000.0)),
        WINDOWED: rope_of(config, both.get(WINDOWED) or {}, config.get("rope_local_base_freq", 10_000.0)),
    }
