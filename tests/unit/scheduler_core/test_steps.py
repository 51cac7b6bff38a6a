"""What goes into a step: decodes first, prompts in chunks, waiting ones as room allows."""

from dataclasses import replace

from services.scheduler.core.messages import Capacity, Priority, StepPlan
from tests.unit.scheduler_core.harness import CAPACITY, LIMITS, Harness

WIDE = Capacity(
    page_size=4, page_count=400, slot_count=8, max_step_tokens=32, context_length=400, vocab_size=50
)


def counts(plan: StepPlan | None) -> list[int]:
    return plan.token_count if plan is not None else []


def test_an_idle_lane_plans_nothing():
    harness = Harness()
    assert harness.plan() is None
    harness.submit(3, 2)
    harness.run()
    assert harness.plan() is None
    assert harness.lane.plan("unknown", harness.now) is None


def test_a_lone_prompt_takes_the_whole_budget():
    harness = Harness()
    harness.submit(70, 1)
    harness.run()
    assert [counts(plan) for plan in harness.plans] == [[32], [32], [6]]


def test_a_prompt_is_capped_as_soon_as_anyone_else_is_present():
    harness = Harness(capacity=WIDE)
    harness.submit(80, 1)
    harness.step()
    harness.submit(80, 1)
    harness.step()
    assert [sorted(counts(plan)) for plan in harness.plans] == [[32], [8, 8]]


def test_decodes_come_first_and_prompts_share_what_is_left():
    harness = Harness(capacity=replace(WIDE, max_step_tokens=20))
    for _ in range(3):
        harness.submit(4, 50)
    harness.step()
    for _ in range(3):
        harness.submit(60, 1)
    harness.step()
    plan = harness.plans[-1]
    assert plan.token_count[:3] == [1, 1, 1]
    assert plan.token_count[3:] == [8, 8, 1]


def test_every_row_that_decodes_is_in_every_step():
    harness = Harness(replace(LIMITS, chunk_tokens=64), WIDE)
    early = harness.submit(4, 40)
    harness.step()
    for _ in range(4):
        harness.submit(100, 4)
    before = len(harness.tokens(early))
    for _ in range(10):
        harness.step()
    assert len(harness.tokens(early)) == before + 10


def test_slots_are_no_more_than_the_budget_so_that_no_decode_is_left_out():
    harness = Harness(capacity=replace(CAPACITY, slot_count=8, max_step_tokens=3))
    for _ in range(8):
        harness.submit(2, 6)
    harness.run()
    assert max(len(plan.slot) for plan in harness.plans) == 3


def test_a_long_prompt_under_way_gets_its_turn_among_a_stream_of_short_ones():
    harness = Harness(replace(LIMITS, chunk_tokens=16), WIDE)
    harness.submit(20, 1)
    long = harness.submit(300, 1)
    for _ in range(400):
        if harness.tokens(long):
            break
        for _ in range(2):
            harness.submit(16, 1)
        harness.step()
    assert harness.tokens(long)


def test_a_step_never_exceeds_the_budget_and_uses_it_while_prompts_wait():
    harness = Harness(capacity=WIDE)
    for _ in range(8):
        harness.submit(60, 2)
    harness.step()
    harness.step()
    assert [sum(counts(plan)) for plan in harness.plans] == [32, 32]


def test_plans_carry_deltas_only():
    harness = Harness()
    harness.submit(6, 8)
    harness.run()
    assert [len(plan.add) for plan in harness.plans] == [1] + [0] * 7
    assert sum(len(plan.page) for plan in harness.plans) == 2  # positions 8 and 12
    assert not any(plan.drop for plan in harness.plans)
    assert harness.plan() is None
    harness.submit(3, 1)
    assert harness.plan().drop == [0]


def test_the_last_token_needs_no_page():
    harness = Harness(capacity=replace(CAPACITY, page_count=2))
    request_id = harness.submit(4, 5)
    harness.run()
    assert len(harness.tokens(request_id)) == 5
    assert harness.lane.counters.preemptions == 0


def test_tails_of_cached_prompts_make_room_before_their_beginnings():
    harness = Harness(capacity=replace(CAPACITY, page_count=8))
    prompt = list(range(17))
    harness.submit(prompt, 1)
    harness.run()
    assert harness.lane.status().cached_pages == 4
    harness.submit(23, 1)
    harness.run()
    again = harness.submit(prompt, 1)
    harness.run()
    assert harness.callers[again].end.cached_tokens == 8


def test_better_classes_are_more_protected_when_pages_run_out():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=12))
    first = harness.submit(12, 20, priority=Priority.BATCH)
    second = harness.submit(12, 20, priority=Priority.INTERACTIVE)
    while not harness.lane.counters.preemptions:
        harness.step()
    progress = len(harness.tokens(second))
    harness.step()
    assert len(harness.tokens(second)) == progress + 1
    harness.run()
    assert harness.tokens(first) == harness.expected(first)
    assert harness.lane.counters.recomputed_tokens > 0


def test_within_a_class_the_latest_goes_first():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=12))
    ids = [harness.submit(8, 20) for _ in range(3)]
    while not harness.lane.counters.preemptions:
        harness.step()
    resident = {one.new.sampling.seed for one in harness.workers["w0"].residents.values()}
    assert resident == set(ids[:2])


def test_a_blocked_prompt_is_passed_by_smaller_ones_but_not_for_ever():
    harness = Harness(replace(LIMITS, bypass_s=0.5), replace(CAPACITY, page_count=16))
    harness.submit(20, 40)
    harness.step()
    blocked = harness.submit(44, 4)
    small = harness.submit(3, 1)
    while not harness.tokens(small):
        harness.step()
    assert not harness.tokens(blocked)
    began = harness.now
    while not harness.tokens(blocked):
        if harness.lane.status().waiting < 3:
            harness.submit(3, 20)
        harness.step()
        assert harness.now - began < 3.0


def test_fresh_sequence_ids_are_never_reused_and_a_resumed_one_is_new():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=12))
    for _ in range(3):
        harness.submit(8, 20)
    harness.run()
    added = [new for plan in harness.plans for new in plan.add]
    assert harness.lane.counters.preemptions > 0
    assert len(added) == 3 + harness.lane.counters.preemptions
    assert len({new.sequence_id for new in added}) == len(added)
    resumed = [new for new in added if len(new.token_ids) > new.prompt_len]
    assert resumed
    assert all(new.prompt_len == 8 for new in resumed)


def test_preemption_is_not_mistaken_for_a_prefix_hit():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=12))
    for _ in range(3):
        harness.submit(8, 20)
    harness.run()
    assert harness.lane.counters.preemptions > 0
    assert all(caller.end.cached_tokens == 0 for caller in harness.callers.values())


def test_each_preemption_raises_the_protection_by_a_class():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=12))
    batch = harness.submit(8, 30, priority=Priority.BATCH)
    for _ in range(600):
        if harness.reason(batch) is not None:
            break
        while harness.lane.status().waiting < 2:
            harness.submit(8, 20, priority=Priority.STANDARD)
        harness.step()
    assert harness.tokens(batch) == harness.expected(batch)
    assert harness.lane.counters.preemptions > 0
    resumed = [new for plan in harness.plans for new in plan.add if new.sampling.seed == batch]
    assert len(resumed) <= 3
