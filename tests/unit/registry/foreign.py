"""A tiny Llama in the forms that importers read: a Hugging Face directory and a GGUF file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS = 4, 2, 16, 64, 96, 2
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


def weights() -> dict[str, NDArray[np.float32]]:
    """Random weights whose values bfloat16 holds exactly."""
    random = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (HIDDEN,),
                "post_attention_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
                "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
                "mlp.gate_proj": (INNER, HIDDEN),
                "mlp.up_proj": (INNER, HIDDEN),
                "mlp.down_proj": (HIDDEN, INNER),
            }.items()
        }
    return {
        name: truncated(random.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()
    }


def truncated(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def write_directory(directory: Path, tensors: dict[str, NDArray[Any]] | None = None, **config: Any) -> Path:
    """A Hugging Face directory; `config` overrides keys."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "bos_token_id": 0}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    vocab = {token: index for index, token in enumerate(TOKENS)}
    Tokenizer(models.BPE(vocab, MERGES)).save(str(directory / "tokenizer.json"))
    save_file(weights() if tensors is None else tensors, directory / "model.safetensors")
    return directory


@dataclass
class GgufSpec:
    """What to write into a GGUF file; tests spoil one thing."""

    tensors: dict[str, NDArray[Any]] = field(default_factory=lambda: gguf_weights(weights()))
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    raw: dict[str, tuple[NDArray[Any], gguf.GGMLQuantizationType]] = field(default_factory=dict)
    architecture: str = "llama"
    tokenizer_model: str = "gpt2"
    pre: str = "smollm"
    tokens: list[str] = field(default_factory=lambda: list(TOKENS))
    merges: list[str] = field(default_factory=lambda: [" ".join(pair) for pair in MERGES])
    add_bos: bool | None = None

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
        writer.add_block_count(LAYERS)
        writer.add_context_length(512)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(500000.0)
        writer.add_rope_dimension_count(HEAD_DIM)
        writer.add_license("mit")
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


def gguf_weights(source: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """GGUF's names, with query and key rows interleaved as its converter does."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    result = {}
    for name, values in source.items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        rows = values.reshape(heads, 2, HEAD_DIM // 2, HIDDEN).swapaxes(1, 2) if heads else values
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        assert gguf_name
        result[gguf_name] = np.ascontiguousarray(rows.reshape(values.shape))
    return result


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
