"""The same right tokens, whatever the batch, the chunks, the pages and the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.unit.worker.engine_driver import Driver, all_logprobs, alone, check_against, prompt_of

if TYPE_CHECKING:
    from services.worker.engine.runner import Runner


def test_tokens_and_logprobs_equal_the_reference(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]]
) -> None:
    check_against(tiny_engine, tiny_cases)


@pytest.mark.parametrize("chunk", [1 << 30, 16, 7])
def test_a_batch_of_mixed_lengths_in_any_chunks_gives_each_row_its_own_tokens(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]], chunk: int
) -> None:
    driver = Driver(tiny_engine, seed=chunk)
    for index in range(32):
        driver.add(tiny_cases[index % 4]["prompt_token_ids"], 24)
    assert driver.run(chunk) == [tiny_cases[index % 4]["greedy_token_ids"] for index in range(32)]


def test_rows_that_join_and_leave_in_mid_flight_change_nobody(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]]
) -> None:
    driver = Driver(tiny_engine, seed=5)
    kept = driver.add(tiny_cases[2]["prompt_token_ids"], 24)
    for length in (60, 3, 100, 17):
        passing = driver.add(prompt_of(length), 24)
        for _ in range(3):
            driver.step(32)
        driver.drop(passing)
    driver.run(32)
    assert kept.output == tiny_cases[2]["greedy_token_ids"]


@pytest.mark.parametrize("after", [1, 5, 9, 23])
def test_preemption_and_recompute_go_on_where_the_output_stood(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]], after: int
) -> None:
    prompt = tiny_cases[2]["prompt_token_ids"]
    driver = Driver(tiny_engine, seed=after)
    row = driver.add(prompt, 24)
    driver.add(prompt_of(30), 24)
    while len(row.output) < after:
        driver.step(16)
    driver.drop(row)
    driver.step(16)
    resumed = driver.add(row.tokens, 24, prompt_len=len(prompt))
    driver.run(16)
    assert resumed.output == tiny_cases[2]["greedy_token_ids"]


def test_pages_shared_as_a_prefix_give_the_tokens_of_computing_them(
    tiny_engine: Runner, tiny_cases: list[dict[str, Any]]
) -> None:
    prompt = tiny_cases[3]["prompt_token_ids"]
    driver = Driver(tiny_engine)
    first = driver.add(prompt, 24)
    driver.step()
    full = (len(prompt) - 1) // tiny_engine.page_size
    hit = driver.add(prompt, 24, prefix=first.pages[:full])
    other = driver.add([*prompt[: 2 * tiny_engine.page_size], *prompt_of(9)], 24, prefix=first.pages[:2])
    driver.run(16)
    assert first.output == hit.output == tiny_cases[3]["greedy_token_ids"]
    assert other.output == alone(tiny_engine, other.tokens[: other.prompt_len], 24)


def test_choices_that_share_the_prompts_pages_draw_as_if_alone(tiny_engine: Runner) -> None:
    prompt = prompt_of(50)
    sampling = {"temperature": 0.9, "seed": 7}
    driver = Driver(tiny_engine)
    first = driver.add(prompt, 12, **sampling)
    driver.step()
    for choice in (1, 2, 3):
        driver.add(prompt, 12, prefix=first.pages[:3], choice=choice, **sampling)
    outputs = driver.run()
    assert len({tuple(output) for output in outputs}) == 4
    for choice, output in enumerate(outputs):
        single = Driver(tiny_engine, seed=choice)
        single.add(prompt, 12, choice=choice, **sampling)
        assert single.run() == [output]


def test_nan_in_free_pages_changes_nothing(tiny_engine: Runner) -> None:
    """Stale pages that hold NaN poison a row that is masked by a product with zero."""
    prompts = [prompt_of(length) for length in (1, 15, 16, 17, 31, 100)]
    outputs = []
    for poison in (False, True):
        tiny_engine.pool.data.zero_()
        driver = Driver(tiny_engine, poison=poison)
        for prompt in prompts:
            driver.add(prompt, 20)
        outputs.append(driver.run(8))
        assert not any(row.error for row in driver.rows)
    assert outputs[0] == outputs[1]


def test_a_partly_filled_page_may_hold_nan_beyond_its_tokens(tiny_engine: Runner) -> None:
    prompt = prompt_of(40)
    driver = Driver(tiny_engine)
    donor = driver.add(prompt[:36], 1)
    driver.run()
    tiny_engine.pool.fill(np.array(donor.pages[2:3]), 4, torch.nan)
    taker = driver.add(prompt, 10)
    added = driver.plan.add[0]
    added.pages.extend(donor.pages)
    added.computed_len = 36
    taker.pages, taker.computed = list(donor.pages), 36
    driver.run()
    assert taker.output == alone(tiny_engine, prompt, 10)


def test_the_last_token_of_the_context_is_sampled_and_needs_no_page(tiny_engine: Runner) -> None:
    driver = Driver(tiny_engine)
    context = tiny_engine.context_length
    row = driver.add(prompt_of(context - 1), 1)
    driver.run(128)
    assert len(row.output) == 1
    assert len(row.tokens) == context


def test_logprobs_are_those_of_the_raw_logits_likeliest_first(tiny_engine: Runner) -> None:
    prompt = prompt_of(20)
    expected = all_logprobs(tiny_engine, prompt)[-1]
    driver = Driver(tiny_engine)
    row = driver.add(prompt, 1, temperature=3.0, seed=1, top_logprobs=20)
    none = driver.add(prompt, 1, top_logprobs=0)
    driver.run()
    logprob, top = row.logprobs[0]
    assert logprob == pytest.approx(expected[row.output[0]].item(), abs=1e-4)
    values, ids = expected.topk(20)
    assert list(top) == ids.tolist()
    assert list(top.values()) == pytest.approx(values.tolist(), abs=1e-4)
    assert none.logprobs[0][1] == {}
    assert none.logprobs[0][0] == pytest.approx(values[0].item(), abs=1e-4)
