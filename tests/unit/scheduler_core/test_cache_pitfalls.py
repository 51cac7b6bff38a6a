"""What went wrong with prefix caches elsewhere; each test is named after what it keeps out."""

from dataclasses import replace

import pytest

from tests.unit.scheduler_core.harness import BOTH_DEPTHS, CAPACITY, LIMITS, Harness, at


@BOTH_DEPTHS
def test_pages_of_an_aborted_request_do_not_enter_the_prefix_cache(depth):
    harness = at(depth)
    prompt = list(range(30))
    aborted = harness.submit(prompt, 4)
    harness.plan()
    harness.cancel(aborted)
    harness.commit()
    assert harness.lane.status().cached_pages == 0
    again = harness.submit(prompt, 4)
    harness.run()
    assert harness.callers[again].end.cached_tokens == 0
    assert harness.tokens(again) == harness.expected(again)


def test_a_failed_row_leaves_nothing_in_the_prefix_cache():
    harness = at(1)
    prompt = list(range(16))
    harness.submit(prompt, 4)
    harness.plan()
    result = harness.results["w0"][0]
    result.row_error[0] = "NAN_LOGITS"
    harness.commit()
    assert harness.lane.status().cached_pages == 0


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_no_tenant_can_probe_anothers_prefix_by_timing(first, second):
    harness = at(1, max_step_tokens=8)
    prompt = list(range(40))
    harness.submit(prompt, 4, tenant_id=first)
    harness.step()
    probe = harness.submit(prompt, 4, tenant_id=second)
    harness.step()
    assert len(harness.workers["w0"].residents) == 2, "waiting for another tenant's page tells of it"
    harness.run()
    assert harness.callers[probe].end.cached_tokens == 0
    own = harness.submit(prompt, 4, tenant_id=second)
    harness.run()
    assert harness.callers[own].end.cached_tokens == 36


def test_a_waiting_prompt_lets_its_own_tenant_compute_the_shared_page_once():
    harness = at(1, max_step_tokens=8)
    prompt = list(range(32))
    harness.submit([*prompt, 1], 2)
    harness.step()
    second = harness.submit([*prompt, 2], 2)
    harness.run()
    assert harness.callers[second].end.cached_tokens == 32
    assert harness.lane.counters.prefill_tokens == 33 + 1


def test_the_wait_for_a_shared_page_is_bounded():
    harness = Harness(replace(LIMITS, prefix_wait_s=0.05), replace(CAPACITY, max_step_tokens=8))
    prompt = list(range(32))
    harness.submit([*prompt, 1], 2)
    harness.plan()
    second = harness.submit([*prompt, 2], 2)
    harness.now += 0.06
    harness.commit()
    harness.plan()
    harness.now += 0.06
    harness.commit()
    plan = harness.plan()
    assert [new.sampling.seed for new in plan.add] == [second]


@pytest.mark.parametrize("fields", [{"n": 20}, {}], ids=["choices", "requests"])
def test_a_crowd_that_waits_for_one_prefix_holds_up_nobody_else(fields):
    harness = at(1, page_count=2000, context_length=1000, slot_count=64)
    prompt = list(range(50)) * 8
    for _ in range(1 if fields else 20):
        harness.submit(prompt, 4, tenant_id="crowd", **fields)
    harness.step()
    others = [harness.submit(5, 2, tenant_id=tenant) for tenant in ("other", "crowd")]
    for _ in range(4):
        harness.step()
    assert all(harness.tokens(request_id) for request_id in others)
    harness.run()
    assert harness.lane.counters.prefix_hit_tokens == 19 * 396
