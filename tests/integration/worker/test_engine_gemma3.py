"""Gemma 3 270M's real weights, imported from its Q4_K_M parts, against their Hugging Face reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.worker.engine import EngineConfig, load_engine
from tests.unit.worker.engine_driver import Driver

if TYPE_CHECKING:
    from services.worker.engine.runner import Runner

CASES = json.loads((Path(__file__).parents[2] / "data" / "gemma3_270m_greedy.json").read_text())["cases"]
WINDOW = 512


def load(artifact: Path, dtype: str) -> Runner:
    sizes = {"page_count": 256, "slot_count": 16, "max_step_tokens": 1024, "threads": 2}
    return load_engine(artifact, EngineConfig(dtype=dtype, **sizes))  # type: ignore[arg-type,return-value]


def first_step_is_close(driver: Driver, tolerance: float) -> None:
    for row, case in zip(driver.rows, CASES, strict=True):
        expected = dict(case["first_step_top5"])
        found = row.logprobs[0][1]
        assert [found[token] for token in expected] == pytest.approx(list(expected.values()), abs=tolerance)


def test_greedy_tokens_and_logprobs_equal_the_reference_in_one_batch_and_chunks(
    gemma3_artifact: Path,
) -> None:
    assert max(len(case["prompt_token_ids"]) for case in CASES) > WINDOW
    driver = Driver(load(gemma3_artifact, "float32"))
    for case in CASES:
        driver.add(case["prompt_token_ids"], len(case["greedy_token_ids"]), top_logprobs=20)
    assert driver.run(chunk=300) == [case["greedy_token_ids"] for case in CASES]
    first_step_is_close(driver, 1e-3)


def test_bfloat16_is_close_to_the_reference_and_halves_the_kv(gemma3_artifact: Path) -> None:
    engine = load(gemma3_artifact, "bfloat16")
    assert engine.kv_bytes_per_token == 18 * 2 * 1 * 256 * 2
    driver = Driver(engine)
    for case in CASES:
        driver.add(case["prompt_token_ids"], 1, top_logprobs=20)
    driver.run(chunk=300)
    first_step_is_close(driver, 0.25)
