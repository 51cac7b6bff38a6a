"""Tiny models of every family in the forms that importers read: Hugging Face directories and GGUF files.

Names and shapes are written out here, and GGUF's come from its own package: none are the importers' own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS = 4, 2, 16, 64, 256, 2
EXPERTS, EXPERT_INNER = 3, 32
SPECIALS = ["<s>", "</s>", "<|user|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("1", "2"), ("12", "3")]
TOKENS = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
VOCAB = len(TOKENS)
TEMPLATE = "{{ messages[0]['content'] }}"

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@dataclass(frozen=True)
class Family:
    """A family's differences from Llama; `telling` is a tensor of a layer that shows them."""

    config: dict[str, Any]
    arch: gguf.MODEL_ARCH
    telling: str
    tell_metadata: Callable[[gguf.GGUFWriter], None] = lambda _: None

    @property
    def document(self) -> dict[str, Any]:
        return CONFIG | self.config

    @property
    def head_dim(self) -> int:
        return int(self.document["head_dim"])


def _mistral_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(24)


def _moe_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(EXPERT_INNER)


def _gemma3_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(24)
    writer.add_sliding_window_pattern(2)
    writer.add_final_logit_softcapping(30.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


FAMILIES = {
    "llama": Family({}, gguf.MODEL_ARCH.LLAMA, "self_attn.q_proj.weight"),
    "mistral": Family(
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
        gguf.MODEL_ARCH.LLAMA,
        "mlp.up_proj.weight",
        _mistral_metadata,
    ),
    "qwen2": Family(
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 4096},
        gguf.MODEL_ARCH.QWEN2,
        "self_attn.k_proj.bias",
    ),
    "qwen3": Family(
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
        gguf.MODEL_ARCH.QWEN3,
        "self_attn.q_norm.weight",
    ),
    "qwen3_moe": Family(
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "head_dim": 32,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": EXPERT_INNER,
            "norm_topk_prob": True,
        },
        gguf.MODEL_ARCH.QWEN3MOE,
        "mlp.experts.2.down_proj.weight",
        _moe_metadata,
    ),
    "gemma3_text": Family(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "final_logit_softcapping": 30.0,
            "sliding_window": 24,
            "sliding_window_pattern": 2,
            "rope_scaling": {"type": "linear", "factor": 8.0},
            "tie_word_embeddings": True,
        },
        gguf.MODEL_ARCH.GEMMA3,
        "post_feedforward_layernorm.weight",
        _gemma3_metadata,
    ),
}


def shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of a family."""
    layer = _layer_shapes(family)
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if not FAMILIES[family].document["tie_word_embeddings"]:
        found["lm_head.weight"] = (VOCAB, HIDDEN)
    for index in range(LAYERS):
        found |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return found


def _layer_shapes(family: str) -> dict[str, tuple[int, ...]]:
    head = FAMILIES[family].head_dim
    found: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (HEADS * head, HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * head, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * head, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * head),
    }
    if family == "qwen2":
        found["self_attn.q_proj.bias"] = (HEADS * head,)
        found |= {f"self_attn.{name}_proj.bias": (KV_HEADS * head,) for name in "kv"}
    if family in {"qwen3", "qwen3_moe", "gemma3_text"}:
        found |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    if family == "gemma3_text":
        found |= {f"{name}_feedforward_layernorm.weight": (HIDDEN,) for name in ("pre", "post")}
    if family != "qwen3_moe":
        return found | _gated("mlp", INNER)
    found["mlp.gate.weight"] = (EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        found |= _gated(f"mlp.experts.{expert}", EXPERT_INNER)
    return found


def _gated(prefix: str, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (inner, HIDDEN),
        f"{prefix}.up_proj.weight": (inner, HIDDEN),
        f"{prefix}.down_proj.weight": (HIDDEN, inner),
    }


def weights(family: str = "llama") -> dict[str, NDArray[np.float32]]:
    """Random weights whose values bfloat16 holds exactly."""
    random = np.random.default_rng(7)
    return {
        name: truncated(random.standard_normal(shape, dtype=np.float32))
        for name, shape in shapes(family).items()
    }


def truncated(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def write_directory(
    directory: Path,
    tensors: dict[str, NDArray[Any]] | None = None,
    *,
    family: str = "llama",
    **config: Any,
) -> Path:
    """A Hugging Face directory; `config` overrides keys."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(FAMILIES[family].document | config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "bos_token_id": 0}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    vocab = {token: index for index, token in enumerate(TOKENS)}
    Tokenizer(models.BPE(vocab, MERGES)).save(str(directory / "tokenizer.json"))
    save_file(weights(family) if tensors is None else tensors, directory / "model.safetensors")
    return directory


@dataclass
class GgufSpec:
    """What to write into a GGUF file; tests spoil one thing."""

    family: str = "llama"
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    raw: dict[str, tuple[NDArray[Any], gguf.GGMLQuantizationType]] = field(default_factory=dict)
    architecture: str = ""
    tokenizer_model: str = "gpt2"
    pre: str = "smollm"
    tokens: list[str] = field(default_factory=lambda: list(TOKENS))
    merges: list[str] = field(default_factory=lambda: [" ".join(pair) for pair in MERGES])
    add_bos: bool | None = None
    more: Callable[[gguf.GGUFWriter], None] = lambda _: None

    def __post_init__(self) -> None:
        self.tensors = self.tensors or gguf_weights(weights(self.family), self.family)
        self.architecture = self.architecture or gguf.MODEL_ARCH_NAMES[FAMILIES[self.family].arch]

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        self._metadata(writer)
        for name, values in self.tensors.items():
            if values.ndim == 1 or self.kind is gguf.GGMLQuantizationType.F32:
                writer.add_tensor(name, values.astype(np.float32))
            else:
                writer.add_tensor(name, gguf.quants.quantize(values, self.kind), raw_dtype=self.kind)
        for name, (data, kind) in self.raw.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _metadata(self, writer: gguf.GGUFWriter) -> None:
        family = FAMILIES[self.family]
        writer.add_block_count(LAYERS)
        writer.add_context_length(512)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(500000.0)
        writer.add_key_length(family.head_dim)
        writer.add_value_length(family.head_dim)
        family.tell_metadata(writer)
        writer.add_license("mit")
        self._tokenizer_metadata(writer)
        self.more(writer)

    def _tokenizer_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.tokenizer_model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types([3 if token in SPECIALS else 1 for token in self.tokens])
        writer.add_token_merges(self.merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_eot_token_id(2)
        writer.add_chat_template(TEMPLATE)
        if self.add_bos is not None:
            writer.add_add_bos_token(self.add_bos)


def gguf_weights(
    source: dict[str, NDArray[np.float32]], family: str = "llama"
) -> dict[str, NDArray[np.float32]]:
    """GGUF's names, and what its converter does to each family's values."""
    result = {}
    for name, values in _stacked(source).items():
        changed = values
        if FAMILIES[family].arch is gguf.MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
            rows = values.reshape(-1, 2, HEAD_DIM // 2, HIDDEN).swapaxes(1, 2)
            changed = np.ascontiguousarray(rows.reshape(values.shape))
        if family == "gemma3_text" and name.endswith("norm.weight"):
            changed = values + np.float32(1)
        result[gguf_name(name, family)] = changed
    return result


def gguf_name(name: str, family: str = "llama") -> str:
    names = gguf.get_tensor_name_map(FAMILIES[family].arch, LAYERS)
    found = names.get_name(_stack_of(name), try_suffixes=(".weight", ".bias"))
    assert found
    return str(found)


def _stack_of(name: str) -> str:
    """An expert's tensor lies in a stack of all experts."""
    return re.sub(r"\.experts\.\d+\.", ".experts.", name)


def _stacked(source: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    stacks: dict[str, list[NDArray[np.float32]]] = {}
    for name, values in source.items():
        stacks.setdefault(_stack_of(name), []).append(values)
    return {name: np.stack(parts) if ".experts." in name else parts[0] for name, parts in stacks.items()}


def read_weights(path: Path) -> dict[str, tuple[str, NDArray[np.float32]]]:
    """Each tensor's type and values, read without the importer's code."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = raw[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
        tensors[name] = (entry["dtype"], values.reshape(entry["shape"]).astype(np.float32))
    return tensors
