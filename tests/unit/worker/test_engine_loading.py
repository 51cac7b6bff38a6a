"""What an artifact may be, what is refused, and by which name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file

from kit.artifacts import ArtifactError
from services.worker.engine import (
    BadWeightsError,
    EngineConfig,
    EngineError,
    UnsupportedModelError,
    kv,
    load_engine,
)
from services.worker.engine.families import read_model
from services.worker.engine.rope import RopeSpec, inverse_frequencies, read_rope
from tests.unit.worker.engine_driver import TINY, TINY_CONFIG, Driver, reseal, seal
from tests.unit.worker.llama_reference import reference_logits

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.engine.runner import Runner

LLAMA3_OLD = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def tiny_with(directory: Path, *, drop: str = "", **config: Any) -> Path:
    """The tiny model with other config values and perhaps without a tensor."""
    artifact = seal(TINY, directory / "changed")
    document = json.loads((artifact / "config.json").read_text()) | config
    (artifact / "config.json").write_text(json.dumps(document))
    tensors = load_file(artifact / "model.safetensors")
    if drop:
        del tensors[drop]
    save_file(tensors, artifact / "model.safetensors")
    return reseal(artifact)


def test_an_unsupported_architecture_is_refused_with_the_list_of_supported_ones(tmp_path: Path) -> None:
    artifact = tiny_with(tmp_path, architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*supported: LlamaForCausalLM"):
        load_engine(artifact, TINY_CONFIG)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type 'yarn'"),
    ],
)
def test_a_feature_that_is_not_implemented_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        load_engine(tiny_with(tmp_path, **config), TINY_CONFIG)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    artifact = tiny_with(tmp_path, drop="model.layers.2.mlp.up_proj.weight")
    with pytest.raises(BadWeightsError, match=r"model\.layers\.2\.mlp\.up_proj\.weight is missing"):
        load_engine(artifact, TINY_CONFIG)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    artifact = tiny_with(tmp_path, intermediate_size=100)
    with pytest.raises(
        BadWeightsError, match=r"gate_proj\.weight has shape \[96, 64\], expected \[100, 64\]"
    ):
        load_engine(artifact, TINY_CONFIG)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_flipped_byte_is_refused_by_file_name(tmp_path: Path, name: str) -> None:
    artifact = seal(TINY, tmp_path / "tiny")
    content = bytearray((artifact / name).read_bytes())
    content[len(content) // 2] ^= 1
    (artifact / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=name):
        load_engine(artifact, TINY_CONFIG)


def test_both_spellings_of_the_rope_configuration_are_read_alike() -> None:
    new = json.loads((TINY / "config.json").read_text())
    assert read_rope(LLAMA3_OLD) == read_rope(new)
    assert read_rope({"rope_theta": 7.0}) == read_rope({"rope_parameters": {"rope_theta": 7.0}})
    assert read_rope({"rope_theta": 7.0, "rope_scaling": None}) == RopeSpec(7.0)


def test_llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    plain = inverse_frequencies(RopeSpec(500000.0), 16)
    scaled = inverse_frequencies(read_rope(LLAMA3_OLD), 16)
    assert scaled[0] == plain[0]
    assert torch.allclose(scaled[2:], plain[2:] / 8)
    assert plain[1] / 8 < scaled[1] < plain[1]


def test_sizes_that_older_checkpoints_leave_out_are_derived() -> None:
    config = json.loads((TINY / "config.json").read_text())
    for key in ("head_dim", "num_key_value_heads", "tie_word_embeddings", "attention_bias", "mlp_bias"):
        del config[key]
    spec = read_model(config)
    assert (spec.head_dim, spec.kv_heads, spec.tied_head) == (16, 4, False)
    assert not spec.qkv_bias
    assert not spec.mlp_bias


def test_a_config_without_a_needed_key_is_refused_by_its_name() -> None:
    config = json.loads((TINY / "config.json").read_text())
    del config["rms_norm_eps"]
    with pytest.raises(EngineError, match="rms_norm_eps"):
        read_model(config)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4, "head_dim": 20},
    ],
    ids=str,
)
def test_every_switch_of_the_family_agrees_with_a_dense_reference(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = json.loads((TINY / "config.json").read_text()) | changes
    spec = read_model(config)
    tensors = random_tensors(spec)
    artifact = seal(TINY, tmp_path / "model")
    (artifact / "config.json").write_text(json.dumps(config))
    save_file(tensors, artifact / "model.safetensors")
    engine = load_engine(reseal(artifact), TINY_CONFIG)
    driver = Driver(engine)  # type: ignore[arg-type]
    prompt = list(range(10, 50))
    row = driver.add(prompt, 3, top_logprobs=20)
    driver.run(16)
    for index, (_, top) in enumerate(row.logprobs):
        expected = F.log_softmax(reference_logits(spec, tensors, row.tokens[: 40 + index])[-1], -1)
        assert list(top.values()) == pytest.approx(expected[list(top)].tolist(), abs=1e-3)
        assert max(top.values()) == pytest.approx(expected.max().item(), abs=1e-3)


def random_tensors(spec: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.15

    hidden, inner = spec.hidden_size, spec.layers[0].feed_forward.inner
    wide, kv_wide = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    tensors = {
        "model.embed_tokens.weight": tensor(spec.vocab_size, hidden),
        "model.norm.weight": 1 + tensor(hidden),
    }
    if not spec.tied_head:
        tensors["lm_head.weight"] = tensor(spec.vocab_size, hidden)
    for layer in range(len(spec.layers)):
        prefix = f"model.layers.{layer}"
        shapes = {
            "self_attn.q": (wide, hidden),
            "self_attn.k": (kv_wide, hidden),
            "self_attn.v": (kv_wide, hidden),
            "self_attn.o": (hidden, wide),
            "mlp.gate": (inner, hidden),
            "mlp.up": (inner, hidden),
            "mlp.down": (hidden, inner),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}_proj.weight"] = tensor(*shape)
            if spec.qkv_bias if name.startswith("self") else spec.mlp_bias:
                tensors[f"{prefix}.{name}_proj.bias"] = tensor(shape[0])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = 1 + tensor(hidden)
    return tensors


def test_the_pool_is_sized_by_count_by_bytes_or_by_free_memory(tiny_artifact: Path) -> None:
    page = 16 * 4 * 2 * 2 * 16 * 4
    assert load_engine(tiny_artifact, TINY_CONFIG).page_count == 256
    by_bytes = replace(TINY_CONFIG, page_count=None, kv_bytes=10 * page + 1)
    assert load_engine(tiny_artifact, by_bytes).page_count == 10
    by_memory = replace(TINY_CONFIG, page_count=None, kv_fraction=0.001)
    assert load_engine(tiny_artifact, by_memory).page_count > 10
    with pytest.raises(EngineError, match="hold no page"):
        load_engine(tiny_artifact, replace(by_bytes, kv_bytes=page - 1))


def test_kv_bytes_per_token_follow_from_kv_heads_and_precision(tiny_engine: Runner) -> None:
    assert tiny_engine.kv_bytes_per_token == 4 * 2 * 2 * 16 * 4
    spec = read_model(json.loads((TINY / "config.json").read_text()))
    assert kv.bytes_per_token(spec, torch.bfloat16) == 4 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    "fields",
    [{"dtype": "float16"}, {"device": "tpu"}, {"page_size": 0}, {"threads": 0}, {"kv_fraction": 1.0}],
    ids=str,
)
def test_a_configuration_that_no_engine_can_have_is_refused_by_field(fields: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=next(iter(fields))):
        EngineConfig(**fields)


def test_the_engine_says_what_it_is(tiny_engine: Runner) -> None:
    assert tiny_engine.model_version.startswith("tiny@")
    assert re.match(rf"(torch-{re.escape(torch.__version__)}|loom-.*)/cpu-", tiny_engine.runtime_revision)
    assert "/float32/" in tiny_engine.runtime_revision
    assert (tiny_engine.context_length, tiny_engine.vocab_size) == (512, 384)


def test_importing_the_package_leaves_torch_unimported() -> None:
    """Torch reads how its threads wait when it is imported: the shell must be able to set that first."""
    code = "import sys, services.worker.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
