"""A run beside peers is judged by the medians of its rounds' ratios, and says what it could not judge."""

from __future__ import annotations

import pytest

from bench.peers.client import Stream, median
from bench.peers.goals import judge
from bench.peers.workloads import of_arrival

EIGHT = "128/128, 8"


def rates(*values: float) -> dict[str, list[dict[str, float]]]:
    return {EIGHT: [{"output_tok_s": value} for value in values]}


def test_a_goal_is_judged_by_the_median_of_each_rounds_ratio():
    figures = {
        "tokenloom bfloat16": rates(400, 300, 500),
        "tokenloom int8": rates(390, 600, 390),
        "vllm bfloat16": rates(100, 200, 200),
        "llama.cpp Q4_1": rates(200, 100, 100),
    }
    verdicts, unjudged = judge(figures)
    found = {verdict.name: (verdict.value, verdict.unit, verdict.verdict) for verdict in verdicts}
    assert found == {
        f"{EIGHT}: bfloat16, output_tok_s": (2.5, "x vllm", "met"),
        f"{EIGHT}: best precision, output_tok_s": (2.5, "x best peer", "missed"),
    }
    assert unjudged == []


def test_what_has_no_peer_is_not_judged_and_said():
    verdicts, unjudged = judge({"tokenloom int8": rates(390), "llama.cpp Q4_1": rates(100)})
    assert [verdict.name for verdict in verdicts] == [f"{EIGHT}: best precision, output_tok_s"]
    assert unjudged == [f"{EIGHT}: bfloat16, output_tok_s x vllm: not measured"]


def test_a_peer_that_is_lost_after_a_round_is_compared_with_that_round_alone():
    figures = {"tokenloom bfloat16": rates(400, 100), "vllm bfloat16": rates(100)}
    verdicts, _ = judge(figures)
    assert [verdict.value for verdict in verdicts] == [4.0, 4.0]


def test_each_precision_is_judged_where_the_goal_names_none():
    gap = {"1480 among 8": [{"gap_of_allowed": 0.9}]}
    wide = {"1480 among 8": [{"gap_of_allowed": 1.1}]}
    verdicts, unjudged = judge({"tokenloom bfloat16": gap, "tokenloom int8": wide})
    assert [verdict.verdict for verdict in verdicts] == ["met", "missed"]
    assert unjudged == ["1480 among 8: each precision, long_ttft_ms x vllm: not measured"]


def test_the_longest_gap_is_the_one_that_the_long_prompt_made():
    running = Stream(sent=0.0, arrivals=[1.0, 3.0, 3.1, 3.2, 3.5, 3.6, 5.0], output_tokens=7, text="a")
    late = Stream(sent=3.15, arrivals=[3.55], output_tokens=1, text="b")
    found = of_arrival([running], late)
    assert found["longest_gap_ms"] == pytest.approx(300)
    assert found["long_ttft_ms"] == pytest.approx(400)
    assert found["gap_of_allowed"] == pytest.approx(300 / (2.5 * found["itl_p50_ms"]))


def test_a_token_without_text_makes_no_gap_of_the_server():
    whole = Stream(sent=0.0, arrivals=[1.0, 1.1, 1.2, 1.3, 1.4], output_tokens=5, text="a")
    paired = Stream(sent=0.0, arrivals=[1.0, 1.2, 1.4], output_tokens=5, text="a")
    late = Stream(sent=1.0, arrivals=[1.4], output_tokens=1, text="a")
    found = of_arrival([whole, paired], late)
    assert (found["longest_gap_ms"], found["gap_streams"]) == (pytest.approx(100), 1)
    assert of_arrival([paired, paired], late)["longest_gap_ms"] == pytest.approx(200)


def test_a_long_prompt_that_fails_counts_and_leaves_its_figures_out():
    running = Stream(sent=0.0, arrivals=[1.0, 1.1], output_tokens=2, text="a")
    found = of_arrival([running], Stream(sent=1.0, failure="500: no"))
    assert found["failed"] == 1
    assert "long_ttft_ms" not in found
    assert "long_ttft_ms" not in median([found, found | {"long_ttft_ms": 1.0}])
