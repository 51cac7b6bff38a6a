"""Delays between attempts."""

import pytest

from kit.backoff import Backoff, jittered


def test_delays_double_up_to_the_bound():
    backoff = Backoff(0.1, 1.0, 10)
    assert [backoff.after(0) for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_what_flaps_is_not_forgiven_by_attempts_that_lasted_a_little():
    backoff = Backoff(0.1, 1.0, 10)
    spent = sum(3.0 + backoff.after(3.0) for _ in range(20))
    assert spent > 20 * 3.0 + 16
    assert backoff.after(10.0) == pytest.approx(0.1)


def test_jitter_takes_up_to_half_and_spreads():
    delays = [jittered(2.0) for _ in range(100)]
    assert all(1.0 <= delay <= 2.0 for delay in delays)
    assert max(delays) - min(delays) > 0.5
