"""Delays between attempts."""

import pytest

from services.scheduler.core.backoff import Backoff


def test_delays_double_up_to_the_bound_and_jitter_takes_up_to_half():
    backoff = Backoff(0.1, 1.0, 10)
    assert [backoff.after(0, 1.0) for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.after(0, 0.0) == pytest.approx(0.5)


def test_what_flaps_is_not_forgiven_by_attempts_that_lasted_a_little():
    backoff = Backoff(0.1, 1.0, 10)
    spent = sum(3.0 + backoff.after(3.0, 0.0) for _ in range(20))
    assert spent > 20 * 3.0 + 8
    assert backoff.after(10.0, 1.0) == pytest.approx(0.1)
