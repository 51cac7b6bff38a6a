"""The default model's real weights against its Hugging Face reference, in both precisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from services.worker.engine import EngineConfig, load_engine
from tests.unit.worker.engine_driver import Driver

if TYPE_CHECKING:
    from services.worker.engine.runner import Runner

CASES = json.loads((Path(__file__).parents[2] / "data" / "smollm2_greedy.json").read_text())["cases"]
# Short and long, chat and raw, early and late ends, the narrowest margins.
SOME = [CASES[index] for index in (0, 3, 9, 12, 14)]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest, smollm2_artifact: Path) -> Runner:
    config = EngineConfig(dtype=request.param, page_count=512, slot_count=64, max_step_tokens=4096, threads=1)
    return load_engine(smollm2_artifact, config)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def exact_engine(engine: Runner) -> Runner:
    if "/float32/" not in engine.runtime_revision:
        pytest.skip("identical ids are promised in float32")
    return engine


def add(driver: Driver, case: dict[str, Any]) -> None:
    driver.add(case["prompt_token_ids"], len(case["greedy_token_ids"]), top_logprobs=20)


def greedy(cases: list[dict[str, Any]]) -> list[list[int]]:
    return [case["greedy_token_ids"] for case in cases]


def test_first_tokens_have_the_references_logprobs(engine: Runner) -> None:
    exact = "/float32/" in engine.runtime_revision
    driver = Driver(engine)
    for case in CASES:
        driver.add(case["prompt_token_ids"], 1, top_logprobs=20)
    driver.run()
    for row, case in zip(driver.rows, CASES, strict=True):
        _, top = row.logprobs[0]
        expected = dict(case["first_step_top5"])
        assert [top[token] for token in expected] == pytest.approx(
            list(expected.values()), abs=2e-3 if exact else 0.15
        )
        best, second, *_ = sorted(expected.values(), reverse=True)
        if exact or best - second > 0.3:
            assert row.output[0] == case["greedy_token_ids"][0]


def test_greedy_tokens_of_every_case_equal_the_reference_in_one_batch(exact_engine: Runner) -> None:
    driver = Driver(exact_engine)
    for case in CASES:
        add(driver, case)
    assert driver.run() == greedy(CASES)


def test_greedy_tokens_equal_the_reference_alone(exact_engine: Runner) -> None:
    for case in SOME[:3]:
        driver = Driver(exact_engine)
        add(driver, case)
        assert driver.run() == greedy([case])


def test_greedy_tokens_equal_the_reference_in_32_rows_and_chunks_of_16_after_preemption_and_prefix_hits(
    exact_engine: Runner,
) -> None:
    driver = Driver(exact_engine, seed=2)
    for case in (SOME * 7)[:32]:
        add(driver, case)
    for _ in range(6):
        driver.step(16)
    preempted, kept = driver.rows[:10:2], driver.rows[10:]
    resumed = []
    for row in preempted:
        driver.drop(row)
        same = (other for other in kept if other.computed >= 16 and other.tokens[:16] == row.tokens[:16])
        prefix = [other.pages[0] for other in same if len(row.tokens) > 16][:1]
        resumed.append(driver.add(row.tokens, row.wanted, prompt_len=row.prompt_len, prefix=prefix))
    driver.run(16)
    by_prompt = {tuple(case["prompt_token_ids"]): case["greedy_token_ids"] for case in SOME}
    assert any(row.borrowed for row in resumed)
    for row in driver.rows:
        assert row.output == by_prompt[tuple(row.tokens[: row.prompt_len])]
