"""How often and when a call is tried again."""

import pytest

from tokenloom.retry import Backoff, Retries, RetryBudget


def retries(backoff: Backoff | None = None, budget: RetryBudget | None = None):
    return Retries(budget or RetryBudget(), backoff or Backoff(), lambda: 0.0)


def test_delays_grow_up_to_the_longest_and_stay_there():
    tried = retries(Backoff(attempts=6, first_s=0.1, longest_s=1.0))
    delays = [tried.next(None) for _ in range(7)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, None]


@pytest.mark.parametrize("attempt", range(5))
def test_half_of_every_delay_is_left_to_chance(attempt):
    backoff = Backoff(first_s=0.1, longest_s=10.0)
    least, most = (backoff.delay_s(attempt, None, chance) for chance in (0.0, 1.0))
    assert most == pytest.approx(2 * least)


def test_a_hint_is_the_least_and_still_spread():
    assert Backoff().delay_s(0, 3.0, 0.0) == 3.0
    assert Backoff().delay_s(0, 3.0, 1.0) > 3.0
    assert Backoff(first_s=8.0, longest_s=8.0).delay_s(0, 3.0, 0.0) == 4.0


def test_progress_starts_the_delays_over():
    tried = retries(Backoff(attempts=2))
    first = tried.next(None)
    assert tried.next(None) is not None
    assert tried.next(None) is None
    tried.progress()
    assert tried.next(None) == first


def test_an_empty_budget_ends_every_callers_retries_and_calls_fill_it_slowly():
    budget = RetryBudget(start=2.0, per_call=0.5, most=2.0)
    tried = retries(budget=budget)
    assert [tried.next(None) is not None for _ in range(3)] == [True, True, False]
    assert retries(budget=budget).next(None) is None, "half a retry is none"
    assert retries(budget=budget).next(None) is not None


def test_a_budget_never_holds_more_than_its_most():
    budget = RetryBudget(start=0.0, per_call=5.0, most=3.0)
    for _ in range(10):
        budget.earn()
    assert [budget.spend() for _ in range(4)] == [True, True, True, False]
