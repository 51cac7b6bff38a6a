"""Rates: step times as measured, guessed low where nobody looked."""

import math

import pytest

from services.scheduler.core.rates import LEAST_PROMPT_TOKENS, Rates, StepCurve


def test_a_measured_size_is_predicted_as_measured_and_between_two_by_the_line():
    curve = StepCurve(base_s=0.0, slope_s=0.0)
    curve.observe(100, 1.0)
    curve.observe(1000, 4.0)
    assert curve.predict(100) == 1.0
    assert curve.predict(550) == pytest.approx(2.5)


def test_what_was_never_measured_is_guessed_low():
    curve = StepCurve(base_s=0.001, slope_s=0.0001)
    assert curve.predict(10) == pytest.approx(0.002)
    curve.observe(10, 1.0)
    assert curve.predict(1000) == pytest.approx(1.099)
    assert curve.predict(5) == pytest.approx(0.5)
    assert curve.predict(0) == 0.0


def test_one_stall_hardly_counts_and_a_fast_step_counts_at_once():
    curve = StepCurve(base_s=0.0, slope_s=0.0)
    curve.observe(64, 1.0)
    curve.observe(64, 1000.0)
    assert curve.predict(64) == pytest.approx(1.2)
    curve.observe(64, 0.2)
    assert curve.predict(64) == pytest.approx(0.7)


def test_what_decodes_add_is_taken_off_a_mixed_step():
    rates = Rates()
    rates.observe_step(0, 1, 0.1, now=1.0)
    rates.observe_step(0, 8, 0.2, now=1.0)
    rates.observe_step(512, 8, 0.6, now=2.0)
    assert rates.beside(8) == pytest.approx(0.1)
    assert rates.prefill_seconds(1024, 512) == pytest.approx(1.0)
    assert rates.last_step_at == 2.0


def test_outputs_that_stop_early_lower_what_is_expected_of_the_next():
    rates = Rates()
    for _ in range(200):
        rates.observe_output(10, 100)
    assert rates.output_share == pytest.approx(0.1, abs=0.01)


def measured(decode_s=0.010, token_s=0.001):
    """Rates of a worker that takes 10 ms for decodes and 1 ms for each prompt token."""
    rates = Rates()
    for rows in (1, 8):
        rates.observe_step(0, rows, decode_s, now=1.0)
    for tokens in (16, 32, 64, 128, 256):
        rates.observe_step(tokens, 8, decode_s + tokens * token_s, now=1.0)
    return rates


def test_prompts_beside_decodes_get_what_fits_the_target():
    rates = measured()
    assert rates.prompt_budget(8, 500, target_s=0.060) == pytest.approx(50, abs=1)
    assert rates.prompt_budget(8, 20, target_s=0.060) == 20
    assert rates.prompt_budget(8, 500, target_s=math.inf) == 500


def test_where_decodes_alone_take_long_prompts_stretch_them_by_a_bounded_share():
    rates = measured(decode_s=0.100)
    assert rates.prompt_budget(8, 500, target_s=0.060) == pytest.approx(120, abs=2)


@pytest.mark.parametrize(("most", "budget"), [(500, LEAST_PROMPT_TOKENS), (3, 3), (0, 0)])
def test_prompts_get_on_beside_decodes_however_slow_the_worker(most, budget):
    assert measured(token_s=1.0).prompt_budget(8, most, target_s=0.060) == budget


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("token_s", [0.0005, 0.00005])
def test_a_worker_that_was_slow_for_a_while_gets_its_prompts_back(rows, token_s):
    rates = Rates()
    for alone in (1, rows):
        rates.observe_step(0, alone, 0.010, now=1.0)
    budgets = []
    for step in range(60):
        budgets.append(rates.prompt_budget(rows, 2000, target_s=0.055))
        seconds = 0.010 + budgets[-1] * token_s
        rates.observe_step(budgets[-1], rows, seconds * (20 if step < 10 else 1), now=1.0)
    assert budgets[9] == LEAST_PROMPT_TOKENS
    assert budgets[-1] == pytest.approx(0.045 / token_s, rel=0.1)
