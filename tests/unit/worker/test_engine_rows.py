"""A bad row ends alone: its reason comes back, its neighbours do not notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.unit.worker.engine_driver import Driver
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from services.worker.engine.runner import Runner

BAD_SEQUENCES: dict[str, tuple[dict[str, Any], str]] = {
    "token beyond the vocabulary": ({"token_ids": [5, 384]}, "TOKEN_OUT_OF_RANGE"),
    "negative token": ({"token_ids": [5, -1]}, "TOKEN_OUT_OF_RANGE"),
    "no tokens": ({"token_ids": []}, "LENGTH_OUT_OF_RANGE"),
    "beyond the context": ({"token_ids": [5] * 513}, "LENGTH_OUT_OF_RANGE"),
    "page beyond the pool": ({"pages": [256]}, "PAGE_OUT_OF_RANGE"),
    "negative page": ({"pages": [-1]}, "PAGE_OUT_OF_RANGE"),
    "computed without pages": ({"computed_len": 1, "pages": []}, "COMPUTED_OUT_OF_RANGE"),
    "everything computed": ({"computed_len": 2}, "COMPUTED_OUT_OF_RANGE"),
    "temperature": ({"sampling": worker_pb2.Sampling(temperature=float("nan"))}, "SAMPLING_OUT_OF_RANGE"),
    "top_p": ({"sampling": worker_pb2.Sampling(top_p=1.5)}, "SAMPLING_OUT_OF_RANGE"),
    "top_logprobs": ({"sampling": worker_pb2.Sampling(top_logprobs=21)}, "SAMPLING_OUT_OF_RANGE"),
}


def run_beside(
    engine: Runner, cases: list[dict[str, Any]], bad: worker_pb2.Sequence
) -> tuple[list[int], worker_pb2.StepResult]:
    """Run a good row, adding `bad` beside it in the third step; the good row's output, and that step."""
    driver = Driver(engine)
    driver.free_slots.remove(9)
    for page in (bad.pages[0], 77) if bad.pages and 0 <= bad.pages[0] < engine.page_count else (77,):
        driver.free_pages.remove(page)
    good = driver.add(cases[1]["prompt_token_ids"], 24)
    driver.step()
    driver.step()
    driver.plan.add.append(bad)
    driver.plan.page_slot.append(bad.slot)
    driver.plan.page.append(77)
    driver.plan.slot.append(bad.slot)
    driver.plan.token_count.append(1)
    result = driver.step()
    driver.run()
    return good.output, result


@pytest.mark.parametrize("name", BAD_SEQUENCES)
def test_a_sequence_that_cannot_be_added_ends_alone(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]], name: str
) -> None:
    fields, reason = BAD_SEQUENCES[name]
    sequence = worker_pb2.Sequence(
        **({"slot": 9, "token_ids": [5, 6], "pages": [3], "prompt_len": 2} | fields)
    )
    output, result = run_beside(tiny_engine, tiny_cases, sequence)
    assert [(error.slot, error.reason) for error in result.row_error] == [(9, reason)]
    assert output == tiny_cases[1]["greedy_token_ids"]


@pytest.mark.parametrize("slot", [-1, 64, 1 << 30])
def test_a_slot_out_of_range_ends_alone(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]], slot: int
) -> None:
    sequence = worker_pb2.Sequence(slot=slot, token_ids=[5, 6], pages=[3])
    output, result = run_beside(tiny_engine, tiny_cases, sequence)
    assert [(error.slot, error.reason) for error in result.row_error] == [(slot, "SLOT_OUT_OF_RANGE")]
    assert output == tiny_cases[1]["greedy_token_ids"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token_count": [3, 0]}, "COUNT_OUT_OF_RANGE"),
        ({"token_count": [3, -4]}, "COUNT_OUT_OF_RANGE"),
        ({"token_count": [3, 3]}, "COUNT_OUT_OF_RANGE"),
        ({"page_slot": [0], "page": [1]}, "PAGES_MISSING"),
        ({"page": [1, 256]}, "PAGE_OUT_OF_RANGE"),
        ({"slot": [0, 1, 1], "token_count": [3, 1, 1]}, "SLOT_REPEATED"),
        ({"slot": [0, 1, 5], "token_count": [3, 2, 1]}, "SLOT_EMPTY"),
        ({"token_count": [3, 2], "drop": [1]}, ""),
    ],
)
def test_a_row_that_cannot_run_ends_alone(tiny_engine: Runner, change: dict[str, Any], reason: str) -> None:
    tiny_engine.reset()
    sequences = [
        worker_pb2.Sequence(slot=0, token_ids=[5, 6, 7]),
        worker_pb2.Sequence(slot=1, token_ids=[8, 9]),
    ]
    fields = {"slot": [0, 1], "token_count": [3, 2], "page_slot": [0, 1], "page": [1, 2]} | change
    result = tiny_engine.execute(worker_pb2.StepPlan(add=sequences, **fields))
    assert [error.reason for error in result.row_error] == ([reason] if reason else [])
    assert 0 in result.slot


def test_rows_beyond_the_step_budget_end_and_the_others_run(tiny_engine: Runner) -> None:
    tiny_engine.reset()
    slots = list(range(10))
    plan = worker_pb2.StepPlan(
        add=[
            worker_pb2.Sequence(
                slot=slot,
                token_ids=[5] * 500,
                pages=[page % 256 for page in range(slot * 32, slot * 32 + 32)],
            )
            for slot in slots[:9]
        ],
        slot=slots[:9],
        token_count=[500] * 9,
    )
    result = tiny_engine.execute(plan)
    assert sorted(result.slot) == slots[:8]
    assert [(error.slot, error.reason) for error in result.row_error] == [(8, "STEP_TOO_LARGE")]


def test_nan_logits_end_their_row_and_no_other(tiny_engine: Runner, tiny_cases: list[dict[str, Any]]) -> None:
    driver = Driver(tiny_engine, poison=False)
    good = driver.add(tiny_cases[1]["prompt_token_ids"], 24)
    sick = driver.add(tiny_cases[1]["prompt_token_ids"], 24, temperature=1.0, seed=3)
    driver.step()
    tiny_engine.pool.fill(np.array(sick.pages[:1]), 2, torch.nan)
    result = driver.step()
    assert sick.error == "NAN_LOGITS"
    assert sick.slot not in result.slot
    driver.run()
    assert good.output == tiny_cases[1]["greedy_token_ids"]


def test_a_failed_slot_is_free_for_the_next_sequence(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]]
) -> None:
    driver = Driver(tiny_engine, poison=False)
    sick = driver.add(tiny_cases[1]["prompt_token_ids"], 24)
    driver.step()
    tiny_engine.pool.data[1, sick.pages[0]] = torch.nan
    driver.step()
    driver.drop(sick)
    driver.free_slots.append(driver.free_slots.pop(0))
    again = driver.add(tiny_cases[1]["prompt_token_ids"], 24)
    assert again.slot == sick.slot
    driver.run()
    assert again.output == tiny_cases[1]["greedy_token_ids"]


def test_reset_forgets_every_sequence(tiny_engine: Runner) -> None:
    driver = Driver(tiny_engine)
    row = driver.add([5, 6, 7], 4)
    driver.step()
    tiny_engine.reset()
    result = tiny_engine.execute(worker_pb2.StepPlan(slot=[row.slot], token_count=[1]))
    assert [error.reason for error in result.row_error] == ["SLOT_EMPTY"]


def test_a_step_without_rows_changes_residency_alone(tiny_engine: Runner) -> None:
    tiny_engine.reset()
    result = tiny_engine.execute(
        worker_pb2.StepPlan(epoch=3, step=8, add=[worker_pb2.Sequence(slot=2, token_ids=[5])])
    )
    assert (result.epoch, result.step, list(result.slot), list(result.row_error)) == (3, 8, [], [])
