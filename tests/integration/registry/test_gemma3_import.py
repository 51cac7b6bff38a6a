"""Gemma 3 270M's artifact, from Q4_K_M parts: ids and text as the reference's, and what the manifest says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from kit import artifacts

DATA = Path(__file__).parents[2] / "data"
CASES = json.loads((DATA / "gemma3_270m_greedy.json").read_text())["cases"]
TOKENIZERS = json.loads((DATA / "registry/tokenizers.json").read_text())


@pytest.fixture(scope="module")
def tokenizer(gemma3_artifact: Path) -> Tokenizer:
    return Tokenizer.from_file(str(gemma3_artifact / artifacts.TOKENIZER))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['text'][-24:]!r}")
def test_prompts_and_generated_ids_are_the_references(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    assert tokenizer.encode(case["text"]).ids == case["prompt_token_ids"]
    assert tokenizer.decode(case["greedy_token_ids"]) == case["greedy_text"]


def test_text_splits_as_sentencepiece_splits_it(tokenizer: Tokenizer) -> None:
    texts, expected = TOKENIZERS["strings"], TOKENIZERS["gemma3"]
    found = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert {t: f for t, f, e in zip(texts, found, expected, strict=True) if f != e} == {}


def test_turn_markers_are_tokens_and_the_end_of_a_turn_stops(
    tokenizer: Tokenizer, gemma3_artifact: Path
) -> None:
    ids = tokenizer.encode("<start_of_turn>user\n", add_special_tokens=False).ids
    assert ids == [105, 2364, 107]
    stops = artifacts.load_manifest(gemma3_artifact).eos_token_ids
    assert [tokenizer.id_to_token(index) for index in stops] == ["<eos>", "<end_of_turn>"]


def test_the_manifest_says_what_the_model_is_and_under_which_licence(gemma3_artifact: Path) -> None:
    manifest = artifacts.load_manifest(gemma3_artifact)
    assert (manifest.family, manifest.context_length, manifest.licence) == ("gemma3_text", 32768, "gemma")
    assert manifest.bos_token_id == 2
    assert manifest.source.endswith("part4-1.0.0-py3-none-any.whl/gemma-3-270m-q4_k_m.gguf")


def test_the_configuration_has_windowed_and_global_layers_with_their_rotations(gemma3_artifact: Path) -> None:
    config = json.loads((gemma3_artifact / artifacts.CONFIG).read_text())
    windowed = [index for index, kind in enumerate(config["layer_types"]) if kind == "sliding_attention"]
    assert windowed == [index for index in range(18) if index % 6 != 5]
    assert (config["sliding_window"], config["query_pre_attn_scalar"]) == (512, 256)
    thetas = {kind: rope["rope_theta"] for kind, rope in config["rope_parameters"].items()}
    assert thetas == {"full_attention": 1e6, "sliding_attention": 1e4}
