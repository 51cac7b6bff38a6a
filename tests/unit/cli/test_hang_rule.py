"""When the supervisor calls a process hung."""

from __future__ import annotations

from tokenloom.up.options import Policy
from tokenloom.up.probes import HangRule, Health

POLICY = Policy(start_s=100, hang_s=20, unserving_s=30)
SERVING, NOT_SERVING, SILENT = Health.SERVING, Health.NOT_SERVING, Health.SILENT


def verdicts(findings, *, must_serve=False):
    rule = HangRule(POLICY, 0.0, must_serve=must_serve)
    return [rule.observe(health, now) for now, health in findings]


def test_a_process_has_its_start_time_to_answer_at_all():
    assert verdicts([(1, SILENT), (99.9, SILENT), (100, SILENT)]) == [None, None, "did not answer for 100 s"]


def test_silence_after_an_answer_is_judged_sooner():
    assert verdicts([(50, NOT_SERVING), (69, SILENT), (70, SILENT)]) == [
        None,
        None,
        "did not answer for 20 s",
    ]


def test_one_answer_makes_up_for_earlier_silence():
    assert verdicts([(1, SERVING), (20, SILENT), (20.5, SERVING), (40, SILENT)]) == [None] * 4


def test_a_service_that_waits_for_a_peer_is_left_alone():
    """Restarting a busy or waiting engine makes an outage of a delay."""
    assert verdicts([(now, NOT_SERVING) for now in range(0, 1000, 10)]) == [None] * 100


def test_a_worker_that_served_and_no_longer_does_is_restarted():
    findings = [(10, SERVING), (39, NOT_SERVING), (40, NOT_SERVING)]
    assert verdicts(findings, must_serve=True) == [None, None, "served and then did not for 30 s"]
    assert verdicts(findings) == [None] * 3


def test_a_worker_may_load_for_as_long_as_it_answers():
    assert verdicts([(500, NOT_SERVING), (501, SERVING)], must_serve=True) == [None, None]
