"""A small llama with random weights, sealed like any other artifact."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from kit import artifacts

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB, CONTEXT = 32, 2, 4, 2, 8, 48, 128, 2048

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def make_models_dir(directory: Path) -> str:
    """Write the model below a models directory and return its `name@version`."""
    staging = directory / "staging"
    staging.mkdir(parents=True)
    (staging / "config.json").write_text(json.dumps(CONFIG))
    (staging / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": {}}}))
    save_file(_weights(), staging / "model.safetensors")
    manifest = artifacts.write_manifest(
        staging,
        artifacts.ManifestMeta(
            name="tiny",
            family="llama",
            context_length=CONTEXT,
            source="random",
            licence="Apache-2.0",
            eos_token_ids=(2,),
            bos_token_id=1,
        ),
    )
    home = artifacts.locate(directory, manifest.model_version)
    home.parent.mkdir()
    staging.rename(home)
    return manifest.model_version


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.3, (rows, columns)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {
            f"{at}input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{at}post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{at}self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"{at}mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            f"{at}mlp.up_proj.weight": matrix(INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": matrix(HIDDEN, INNER),
        }
    return weights
