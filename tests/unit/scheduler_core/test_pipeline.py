"""Depth 2 plans a step before the last one's result is known, and produces the same tokens."""

from dataclasses import replace

import pytest

from services.scheduler.core.errors import StepOutOfOrder
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import FinishReason
from tests.unit.scheduler_core.harness import CAPACITY, LIMITS, Harness

DEEP = replace(LIMITS, pipeline_depth=2)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_full_pipeline_takes_no_plan(depth):
    harness = Harness(replace(LIMITS, pipeline_depth=depth))
    harness.submit(4, 20)
    for _ in range(depth):
        assert harness.plan() is not None
    assert harness.plan() is None
    assert len(harness.results["w0"]) == depth
    harness.commit()
    assert harness.plan() is not None


def test_only_depths_that_work_are_accepted():
    with pytest.raises(ValueError, match="pipeline_depth"):
        LaneLimits(pipeline_depth=3)


def test_rows_that_surely_end_are_not_planned_again():
    harness = Harness(DEEP)
    request_id = harness.submit(4, 2)
    assert [harness.plan() is not None for _ in range(2)] == [True, True]
    harness.commit()
    assert harness.plan() is None
    harness.commit()
    assert harness.reason(request_id) is FinishReason.LENGTH


def test_rows_planned_beyond_a_stop_are_discarded_unread():
    harness = Harness(DEEP)
    request = harness.request(4, 10)
    stop = harness_first_token(request)
    request_id = harness.submit_request(replace(request, stop_token_ids=frozenset({stop})))
    harness.plan()
    harness.plan()
    harness.results["w0"][1].row_error[0] = "NAN_LOGITS"
    harness.commit()
    assert harness.reason(request_id) is FinishReason.STOP
    harness.commit()
    assert harness.tokens(request_id) == [stop]
    assert harness.lane.counters.row_errors == 0


def harness_first_token(request):
    probe = Harness()
    request_id = probe.submit_request(request)
    probe.run()
    return probe.tokens(request_id)[0]


def test_slot_and_pages_are_reusable_in_the_plan_that_carries_their_drop():
    harness = Harness(DEEP, replace(CAPACITY, page_count=4, slot_count=1))
    first, second = harness.submit(12, 4), harness.submit(12, 4)
    harness.plan()
    harness.plan()
    harness.cancel(first)
    harness.commit()
    plan = harness.plan()
    assert plan.drop == [0]
    assert [new.slot for new in plan.add] == [0]
    assert len(set(plan.add[0].pages)) == 3
    harness.run()
    assert harness.tokens(second) == harness.expected(second)


def test_preemption_in_flight_repeats_and_loses_no_token():
    harness = Harness(replace(DEEP, watermark=0.0), replace(CAPACITY, page_count=10))
    ids = [harness.submit(8, 20) for _ in range(4)]
    harness.run()
    assert harness.lane.counters.preemptions > 0
    for request_id in ids:
        assert harness.tokens(request_id) == harness.expected(request_id)


def test_a_repeated_or_foreign_result_changes_nothing():
    harness = Harness(DEEP)
    harness.submit(4, 6)
    harness.plan()
    result = harness.results["w0"][0]
    harness.commit()
    for again in (result, replace(result, epoch=result.epoch + 1)):
        harness.lane.commit("w0", again, harness.now)
    harness.lane.commit("unknown", result, harness.now)
    assert harness.lane.effects() == []
    assert harness.lane.counters.stale_results == 3
    harness.run()


def test_a_skipped_step_is_an_error():
    harness = Harness(DEEP)
    harness.submit(4, 6)
    harness.plan()
    harness.plan()
    with pytest.raises(StepOutOfOrder):
        harness.lane.commit("w0", harness.results["w0"][1], harness.now)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_is_timed_from_when_its_worker_could_begin(depth):
    harness = Harness(replace(LIMITS, pipeline_depth=depth))
    harness.submit(4, 30)
    harness.run()
    assert harness.lane._rates.decode.predict(1) == pytest.approx(harness.step_s)
