"""Whole models through the Triton kernels, under the interpreter: against references, replayed, padded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from kit import artifacts
from services.worker.engine import load_engine
from services.worker.engine.batch import Batch
from services.worker.engine.families import read_model
from services.worker.engine.gpu import GpuDecoder, GpuSampler, attention, warm
from services.worker.engine.gpu.graphs import DecodeGraphs, sizes_up_to
from services.worker.engine.weights import Checkpoint
from tests.unit.worker.engine_driver import (
    DATA,
    TINY_CONFIG,
    Driver,
    all_logprobs,
    altered,
    cases_of,
    seal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.engine.gpu.graphs import Run
    from services.worker.engine.gpu.step import Step
    from services.worker.engine.runner import Runner

WINDOWED = ("gemma3", "mistral-window")
TRITON = replace(TINY_CONFIG, kernels="triton")


def triton_engine(artifact: Path) -> Runner:
    return load_engine(artifact, TRITON)  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreting the hundreds of programs that keep a GPU busy would take a second a step."""
    monkeypatch.setattr(attention, "_PROGRAMS", 16)


@pytest.fixture(scope="module")
def tiny_triton(tiny_artifact: Path) -> Runner:
    return triton_engine(tiny_artifact)


def record_nothing(run: Run) -> Run:
    """Stand in for CUDA's recorder: what was to be recorded runs again each time."""
    return run


def check_logprobs(engine: Runner, case: dict[str, Any]) -> None:
    ids = case["prompt_token_ids"]
    logprobs = all_logprobs(engine, ids)
    of_prompt = [logprobs[index, token].item() for index, token in enumerate(ids[1:])]
    assert of_prompt == pytest.approx(case["prompt_logprobs"], abs=1e-3)


@pytest.mark.parametrize("name", [*WINDOWED, "llama3-rope", "qwen2", "qwen3", "qwen3-moe"])
def test_every_family_gives_the_log_probabilities_of_its_reference(name: str, tmp_path: Path) -> None:
    # The longer prompt does not fit into the window of those that have one.
    case = cases_of(name)[2 if name in WINDOWED else 1]
    check_logprobs(triton_engine(seal(DATA / name, tmp_path / name)), case)


def test_caps_are_those_of_torch(tmp_path: Path) -> None:
    changes = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    artifact = altered("gemma3", tmp_path, changes)
    ids = cases_of("gemma3")[1]["prompt_token_ids"]
    expected = all_logprobs(load_engine(artifact, replace(TINY_CONFIG, kernels="torch")), ids)  # type: ignore[arg-type]
    torch.testing.assert_close(all_logprobs(triton_engine(artifact), ids), expected, atol=1e-4, rtol=1e-4)


def test_rows_of_any_kind_run_beside_each_other(
    tiny_triton: Runner, tiny_cases: list[dict[str, Any]]
) -> None:
    driver = Driver(tiny_triton)
    rows = [driver.add(case["prompt_token_ids"], 3) for case in tiny_cases[:2]]
    driver.step(chunk=5)
    rows.append(driver.add(tiny_cases[2]["prompt_token_ids"], 1))
    driver.run(chunk=30)
    for row, case in zip(rows, tiny_cases, strict=False):
        assert row.output == case["greedy_token_ids"][: row.wanted]


def test_a_step_that_samples_nothing_computes_no_logits(
    tiny_triton: Runner, tiny_cases: list[dict[str, Any]]
) -> None:
    driver = Driver(tiny_triton)
    driver.add(tiny_cases[1]["prompt_token_ids"], 1)
    assert list(driver.step(chunk=4).slot) == []


def test_replayed_steps_pad_rows_and_change_no_token(tiny_artifact: Path, tiny_triton: Runner) -> None:
    engine = triton_engine(tiny_artifact)
    pool: Any = engine.pool
    spec = read_model(json.loads((tiny_artifact / artifacts.CONFIG).read_bytes()))
    weights = Checkpoint(tiny_artifact / artifacts.WEIGHTS, torch.float32, "cpu")
    engine.forward = decoder = GpuDecoder(spec, weights, pool)
    decoder.record(4, record_nothing)
    outputs = []
    for each in (engine, tiny_triton):
        driver = Driver(each)
        for length in (9, 2, 4):
            driver.add(range(3, 3 + length), 2)
        driver.add([9, 8, 7], 1)
        outputs.append(driver.run())
    assert outputs[0] == outputs[1]


def test_a_step_is_replayed_at_the_next_recorded_size() -> None:
    seen: list[int] = []

    def forward(step: Step) -> torch.Tensor:
        seen.append(len(step.token_ids))
        return step.token_ids[:, None].float().expand(-1, 5)

    graphs = DecodeGraphs(
        forward,
        sizes_up_to(8),
        table_width=3,
        vocabulary=5,
        device=torch.device("cpu"),
        capture=record_nothing,
    )
    for rows, size in ((1, 1), (3, 4), (5, 8), (8, 8)):
        batch = decoding(rows)
        assert graphs.fits(batch)
        assert graphs(batch)[:, 0].tolist() == list(range(rows))
        assert seen[-1] == size
    assert not graphs.fits(decoding(9))


def decoding(rows: int) -> Batch:
    """Rows of one token each, whose number is the row's."""
    index, ones = np.arange(rows), np.ones(rows, int)
    return Batch(index, index, index, ones, index + 1, index[:, None], index)


def test_warming_runs_every_split_and_both_draws_and_writes_nothing(tiny_artifact: Path) -> None:
    engine, pages = triton_engine(tiny_artifact), []
    forward: Any = engine.forward
    engine.pool.data.fill_(7.0)

    def watched(batch: Batch) -> torch.Tensor:
        pages.append((len(batch.counts) - 1, attention.splits_for(len(batch.counts) - 1, 2)))
        return forward(batch)  # type: ignore[no-any-return]

    warm(watched, GpuSampler(), slots=8, kv_heads=2)
    assert pages == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert (engine.pool.data == 7.0).all()


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 17, 200, 256, 1000])
def test_recorded_sizes_cover_the_rows_asked_for(rows: int) -> None:
    sizes = sizes_up_to(rows)
    assert sizes[-1] >= min(rows, 256)
    assert np.diff(sizes).max(initial=1) <= 16
