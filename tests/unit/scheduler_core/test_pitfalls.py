"""What went wrong in other engines' schedulers; each test is named after what it keeps out."""

import gc
from dataclasses import replace

import pytest

from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.messages import FinishReason, Priority
from services.scheduler.core.sequence import Sequence
from tests.unit.scheduler_core.harness import BOTH_DEPTHS, CAPACITY, LIMITS, Harness, at


def test_a_request_that_fits_the_context_but_not_the_pool_never_blocks_the_queue():
    harness = at(1, page_count=10)
    with pytest.raises(AdmissionError, match="CONTEXT_TOO_LONG"):
        harness.submit(60, 4)
    behind = harness.submit(4, 4)
    harness.run()
    assert harness.reason(behind) is FinishReason.LENGTH


def test_a_waiting_request_that_no_worker_can_hold_any_more_fails_instead_of_waiting_for_ever():
    harness = at(1)
    large, small = harness.submit(60, 4), harness.submit(4, 4)
    harness.attach("w0", replace(CAPACITY, page_count=8))
    assert harness.callers[large].ends[0].error_reason == "CONTEXT_TOO_LONG"
    harness.run()
    assert harness.reason(small) is FinishReason.LENGTH


@pytest.mark.parametrize("watermark", [0.0, 0.5, 0.99])
def test_when_nothing_runs_and_something_waits_it_is_admitted_in_this_step(watermark):
    harness = Harness(replace(LIMITS, watermark=watermark), replace(CAPACITY, page_count=16))
    for prompt in (63, 1, 40, 63, 20):
        harness.submit(prompt, 1)
    while harness.lane.status().requests:
        idle = not harness.lane.status().running
        assert harness.step()
        assert not idle or harness.plans[-1].add


def test_preemption_takes_only_victims_whose_pages_return_now():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=14))
    harness.submit(33, 20, n=4)
    before, victims = 0, []
    while harness.lane.status().requests:
        residents = {one.new.sequence_id: one for one in harness.workers["w0"].residents.values()}
        plan = harness.plan()
        preempted = harness.lane.counters.preemptions - before
        before += preempted
        if preempted:
            gone = set(residents) - {one.new.sequence_id for one in harness.workers["w0"].residents.values()}
            victims += [residents[name] for name in gone]
            assert len(plan.page) > 0, "a preemption that gave nobody a page"
        harness.commit()
    assert victims
    assert all(len(victim.pages) > 8 for victim in victims), "only shared pages came back"


def test_a_victim_whose_pages_others_hold_is_left_alone():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=8))
    for _ in range(2):
        harness.submit(12, 12)
    while harness.lane.status().free_pages:
        harness.step()
    pool = harness.lane._replicas["w0"].pool
    for page in harness.workers["w0"].residents[1].pages:
        pool.hold(page)
    for _ in range(3):
        harness.plan()
        assert set(harness.workers["w0"].residents) == {0, 1}
        harness.now += harness.step_s
        harness.lane.commit("w0", harness.results["w0"].popleft(), harness.now)
        harness.drain_effects()
    assert harness.plan() is not None
    assert harness.lane.counters.preemptions == 1, "the one whose pages return gave them"
    assert set(harness.workers["w0"].residents) == {1}


def test_one_preemption_frees_enough_and_does_not_evict_the_batch():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=16))
    for _ in range(4):
        harness.submit(12, 12)
    seen = 0
    while harness.lane.status().requests:
        harness.step()
        assert harness.lane.counters.preemptions - seen <= 1
        seen = harness.lane.counters.preemptions
    assert seen > 0


def test_the_watermark_keeps_over_admission_from_turning_into_recomputation():
    def recomputed(watermark: float) -> int:
        harness = Harness(replace(LIMITS, watermark=watermark), replace(CAPACITY, page_count=24))
        for _ in range(30):
            harness.submit(12, 16)
        harness.run()
        return harness.lane.counters.recomputed_tokens

    assert recomputed(0.25) < recomputed(0.0) / 2


def test_one_long_prompt_does_not_freeze_the_others():
    harness = at(1, page_count=400, context_length=1000, max_step_tokens=16)
    early = harness.submit(4, 100)
    harness.step()
    long = harness.submit(600, 1)
    harness.submit(600, 1)
    harness.step()
    short = harness.submit(8, 4)
    heard = len(harness.tokens(early))
    for _ in range(6):
        harness.step()
    assert len(harness.tokens(early)) == heard + 6
    assert harness.reason(short) is FinishReason.LENGTH
    assert not harness.tokens(long)


def timed(depth, context=2000, target_s=0.055):
    """A lane, and a function that steps its worker: 10 ms, and 1 ms for each prompt token."""
    limits = replace(LIMITS, pipeline_depth=depth, chunk_tokens=128, step_target_s=target_s)
    capacity = replace(CAPACITY, page_count=4000, context_length=context, max_step_tokens=512)
    harness = Harness(limits, capacity)

    def step():
        while harness.plan() is not None:
            pass
        took = []
        for plan in harness.plans[-len(harness.results["w0"]) :]:
            prompt_tokens = sum(count for count in plan.token_count if count > 1)
            harness.step_s = 0.010 + prompt_tokens * 0.001
            took.append(harness.step_s)
            harness.commit()
        return took

    return harness, step


@BOTH_DEPTHS
def test_a_long_prompt_stretches_the_steps_of_those_that_run_to_the_target_and_not_beyond(depth):
    harness, step = timed(depth)
    early = [harness.submit(40, 200) for _ in range(3)]
    for _ in range(20):
        step()
    long = harness.submit(1480, 1)
    heard, gaps = len(harness.tokens(early[0])), []
    while not harness.tokens(long):
        gaps += step()
    assert sorted(gaps)[-4] <= 0.060, "but for the first, in which the worker's rate is learnt"
    assert len(harness.tokens(early[0])) - heard >= len(gaps) - depth
    assert sum(gaps) <= 1.5 * 1.480


@BOTH_DEPTHS
@pytest.mark.parametrize("prompt", [100, 300])
def test_beside_decodes_too_a_short_prompt_passes_a_long_one(depth, prompt):
    harness, step = timed(depth, context=9000)
    harness.submit(40, 400)
    for _ in range(20):
        step()
    long = harness.submit(8000, 1)
    for _ in range(5):
        step()
    short, since = harness.submit(prompt, 1), harness.now
    while not harness.tokens(short):
        step()
    assert harness.now - since <= 2 * prompt * 0.001 + 0.2
    assert not harness.tokens(long)


@BOTH_DEPTHS
def test_a_deadline_is_judged_by_steps_that_are_held_to_the_target(depth):
    """16 tokens in each 26 ms, where 128 in 138 ms would do."""
    harness, step = timed(depth, target_s=0.020)
    for _ in range(3):
        harness.submit(40, 200)
    for _ in range(20):
        step()
    harness.submit(400, 1)
    for _ in range(40):
        step()
    with pytest.raises(AdmissionError, match="DEADLINE_INFEASIBLE"):
        harness.submit(1480, 1, deadline=harness.now + 2.0)
    late = harness.submit(1480, 1, deadline=harness.now + 2.8)
    while not harness.callers[late].end:
        step()
    assert harness.reason(late) is FinishReason.LENGTH


@BOTH_DEPTHS
def test_pages_of_a_cancelled_request_wait_for_no_signal(depth):
    harness = at(depth)
    request_id = harness.submit(40, 20)
    harness.plan()
    assert harness.lane.status().owned_pages == 10
    harness.cancel(request_id)
    assert harness.lane.status().owned_pages == 0
    assert harness.lane.status().running == 0


@BOTH_DEPTHS
def test_decode_stops_with_the_cancel_and_is_in_no_plan_built_after_it(depth):
    harness = at(depth)
    gone, stays = harness.submit(4, 50), harness.submit(4, 30)
    for _ in range(3):
        harness.step()
    heard = len(harness.tokens(gone))
    harness.cancel(gone)
    planned = len(harness.plans)
    harness.run()
    assert all(len(plan.slot) == 1 for plan in harness.plans[planned:])
    assert len(harness.tokens(gone)) == heard
    assert harness.tokens(stays) == harness.expected(stays)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_queued_prefilling_and_running_cancels_leave_by_the_same_door(steps):
    harness = at(1, max_step_tokens=8)
    ids = [harness.submit(20, 10), harness.submit(20, 10, n=2)]
    for _ in range(steps):
        harness.step()
    for request_id in ids:
        harness.cancel(request_id)
        harness.cancel(request_id)
    status = harness.lane.status()
    assert (status.requests, status.waiting, status.running, status.owned_pages) == (0, 0, 0, 0)
    assert all(harness.callers[request_id].end is not None for request_id in ids)
    assert harness.lane.check_integrity() == []


def test_a_late_cancel_kills_nobody_else():
    harness = at(1)
    gone, stays = harness.submit(4, 2), harness.submit(4, 20)
    harness.step()
    harness.cancel(gone)
    for late in (gone, 0, -1, stays * 10, int(f"{stays}0")):
        harness.cancel(late)
        harness.cancel(stays, choice=7)
    harness.run()
    assert harness.tokens(stays) == harness.expected(stays)


def test_cancel_plus_reuse_of_the_id_does_not_touch_the_new_request():
    harness = at(2)
    request = harness.request(4, 10)
    harness.submit_request(request)
    harness.plan()
    harness.plan()
    harness.cancel(request.request_id)
    harness.submit_request(request)
    harness.commit()
    assert harness.tokens(request.request_id) == []
    harness.run()
    assert harness.tokens(request.request_id) == harness.expected(request.request_id)


def test_a_result_in_flight_of_a_preempted_sequence_is_ignored():
    harness = Harness(
        replace(LIMITS, pipeline_depth=2, watermark=0.0), replace(CAPACITY, page_count=10, slot_count=3)
    )
    ids = [harness.submit(8, 24, priority=priority) for priority in Priority]
    preempted_in_flight = 0
    while harness.lane.status().requests:
        before = harness.lane.counters.preemptions
        while harness.plan() is not None:
            pass
        if len(harness.results["w0"]) == 2:
            preempted_in_flight += harness.lane.counters.preemptions - before
        harness.commit()
    assert preempted_in_flight > 0
    assert all(harness.tokens(request_id) == harness.expected(request_id) for request_id in ids)


def test_one_bad_parameter_neither_enters_nor_kills_the_lane():
    harness = at(1)
    running = harness.submit(4, 10)
    harness.step()
    for prompt in ([CAPACITY.vocab_size], [-1], []):
        with pytest.raises(AdmissionError):
            harness.submit(prompt, 4)
    harness.run()
    assert harness.tokens(running) == harness.expected(running)


@BOTH_DEPTHS
def test_one_rows_error_does_not_fail_the_batch(depth):
    harness = at(depth)
    ids = [harness.submit(4, 10) for _ in range(5)]
    harness.step()
    victim = harness.workers["w0"].residents[2]
    harness.workers["w0"].failing.add(victim.new.sequence_id)
    harness.run()
    reasons = [harness.reason(request_id) for request_id in ids]
    assert sorted(reasons) == [FinishReason.LENGTH] * 4 + [FinishReason.ERROR]


@pytest.mark.parametrize(("prompt", "fits"), [(95, True), (96, False), (97, False)])
def test_a_prompt_of_the_context_length_does_not_crash_the_end(prompt, fits):
    harness = at(1)
    if not fits:
        with pytest.raises(AdmissionError, match="CONTEXT_TOO_LONG"):
            harness.submit(prompt, 1)
        return
    request_id = harness.submit(prompt, 10)
    harness.run()
    assert harness.reason(request_id) is FinishReason.LENGTH
    assert len(harness.tokens(request_id)) == 1


def test_a_hanging_worker_is_told_by_its_steps_and_not_by_being_alive():
    harness = at(1)
    request_id = harness.submit(4, 20)
    harness.step()
    last = harness.lane.status().last_step_at
    harness.plan()
    harness.now += 60.0
    assert harness.lane.plan("w0", harness.now) is None
    assert harness.lane.status().last_step_at == last
    assert harness.reason(request_id) is None


def test_the_newest_work_of_a_flood_does_not_starve_the_oldest():
    harness = at(1, slot_count=2)
    batch = harness.submit(8, 4, priority=Priority.BATCH, tenant_id="quiet")
    for _ in range(300):
        if harness.reason(batch) is not None:
            break
        while harness.lane.status().waiting < 8:
            harness.submit(8, 4, priority=Priority.INTERACTIVE, tenant_id="loud")
        harness.step()
    assert harness.reason(batch) is FinishReason.LENGTH


def test_an_ended_request_needs_no_garbage_collector():
    def alive() -> int:
        return sum(type(one) is Sequence for one in gc.get_objects())

    gc.collect()
    before = alive()
    gc.disable()
    try:
        harness = at(2)
        harness.submit(12, 6, n=2)
        harness.cancel(harness.submit(12, 6))
        harness.run()
        assert alive() == before
    finally:
        gc.enable()
