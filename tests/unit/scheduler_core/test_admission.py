"""Door and queue: what is refused, why, and when to come back."""

from dataclasses import replace

import pytest

from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import Capacity, Priority
from tests.unit.scheduler_core.harness import CAPACITY, LIMITS, Harness

LARGE = Capacity(
    page_size=16, page_count=2048, slot_count=64, max_step_tokens=512, context_length=4096, vocab_size=50
)


def refusal(harness: Harness, prompt: int | list[int], output: int = 4, **fields: object) -> AdmissionError:
    with pytest.raises(AdmissionError) as caught:
        harness.submit(prompt, output, **fields)
    return caught.value


def admitted(harness: Harness, *args: object, **fields: object) -> bool:
    try:
        harness.submit(*args, **fields)  # type: ignore[arg-type]
    except AdmissionError:
        return False
    return True


def warm(harness: Harness) -> None:
    """Let the lane measure its workers."""
    for prompt in (1, 30, 60):
        harness.submit(prompt, 8)
    harness.run()


@pytest.mark.parametrize(
    ("prompt", "fields", "field"),
    [
        ([], {}, "prompt"),
        ([0, 50], {}, "prompt"),
        ([0, -1], {}, "prompt"),
        ([1], {"max_output_tokens": 0}, "max_output_tokens"),
        ([1], {"n": 0}, "n"),
        ([1], {"n": 129}, "n"),
    ],
)
def test_malformed_requests_are_refused_by_the_fields_name(prompt, fields, field):
    harness = Harness()
    request = replace(harness.request(prompt), **fields)
    with pytest.raises(AdmissionError) as caught:
        harness.submit_request(request)
    assert (caught.value.reason, caught.value.field) == ("INVALID_REQUEST", field)
    assert caught.value.retry_after_s is None
    assert harness.lane.counters.refusals == {"INVALID_REQUEST": 1}
    assert harness.lane.status().requests == 0


def test_a_prompt_beyond_the_context_is_refused_with_what_is_allowed():
    error = refusal(Harness(), 96)
    assert (error.reason, error.field) == ("CONTEXT_TOO_LONG", "prompt")
    assert "up to 95" in error.message


def test_an_output_beyond_the_pages_is_refused_with_what_is_allowed():
    harness = Harness(capacity=replace(CAPACITY, page_count=10))
    error = refusal(harness, 30, 12)
    assert (error.reason, error.field) == ("CONTEXT_TOO_LONG", "max_output_tokens")
    assert "up to 11" in error.message
    assert admitted(harness, 30, 11)


def test_a_live_id_is_refused_and_the_live_request_unharmed():
    harness = Harness()
    first = harness.submit(5, 5)
    with pytest.raises(AdmissionError) as caught:
        harness.lane.submit(harness.callers[first].request, harness.now)
    assert caught.value.field == "request_id"
    harness.run()
    assert harness.tokens(first) == harness.expected(first)


def test_without_a_worker_there_is_no_capacity():
    error = refusal(Harness(replicas=0), 5)
    assert error.reason == "NO_CAPACITY"
    assert error.retry_after_s is not None


def test_while_every_worker_drains_nothing_new_is_taken():
    harness = Harness()
    harness.lane.drain_replica("w0")
    assert refusal(harness, 5).reason == "DRAINING"


def test_a_deadline_that_has_passed_is_told_from_one_that_cannot_be_met():
    harness = Harness()
    assert refusal(harness, 5, deadline=harness.now).reason == "DEADLINE_EXCEEDED"


def test_the_queue_is_bounded_by_work_and_not_by_count():
    def taken(prompt: int, output: int) -> int:
        harness = Harness(replace(LIMITS, max_queue_s=0.5, max_queue_pools=1e9), LARGE)
        harness.step_s = 0.05
        warm(harness)
        count = 0
        while count < 5000 and admitted(harness, prompt, output):
            count += 1
        return count

    long, short = taken(3000, 200), taken(30, 20)
    assert 1 <= long < 20
    assert short > 10 * long


def test_the_queue_is_bounded_by_pages_whatever_the_speed():
    harness = Harness(replace(LIMITS, max_queue_s=1e9, max_queue_pools=3.0))
    count = 0
    while admitted(harness, 20, 5):
        count += 1
        assert count < 1000
    assert count * 6 <= 4 * CAPACITY.page_count < (count + 1) * 6
    assert harness.lane.counters.refusals == {"KV_EXHAUSTED": 1}
    harness.run()
    assert all(caller.end is not None for caller in harness.callers.values())


def test_an_empty_queue_takes_any_request_that_fits():
    harness = Harness(replace(LIMITS, max_queue_s=1e-9, max_queue_pools=1e-9))
    assert admitted(harness, 60, 30)
    assert not admitted(harness, 1, 1)
    harness.step()
    assert admitted(harness, 60, 30), "a full worker is no queue"
    assert not admitted(harness, 1, 1)


MEDIUM = replace(LARGE, page_count=256, slot_count=32)


def loaded(limits: LaneLimits) -> Harness:
    """Return a lane in full swing whose queue is full of small requests."""
    harness = Harness(limits, MEDIUM)
    warm(harness)
    for round_ in range(60):
        while admitted(harness, 40 + round_ % 7, 20 + round_ % 11):
            pass
        harness.step()
    return harness


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, max_queue_s=0.3, max_queue_pools=1e9),
        replace(LIMITS, max_queue_s=1e9, max_queue_pools=3.0),
    ],
    ids=["seconds", "pages"],
)
def test_retry_after_is_the_time_until_an_identical_request_is_admitted(limits):
    harness = loaded(limits)
    first = refusal(harness, 1000, 200, n=4)
    assert first.retry_after_s is not None
    begin = harness.now
    while not admitted(harness, 1000, 200, n=4):
        harness.step()
    took_s = harness.now - begin
    assert took_s == pytest.approx(first.retry_after_s, rel=0.5)


def test_batch_work_does_not_close_the_queue_to_interactive_requests():
    harness = Harness(replace(LIMITS, max_queue_s=0.5, max_queue_pools=4.0))
    warm(harness)
    while admitted(harness, 40, 20, priority=Priority.BATCH):
        pass
    assert admitted(harness, 10, 5, priority=Priority.INTERACTIVE)
    assert not admitted(harness, 40, 20, priority=Priority.BATCH)


def solo_ttft(harness: Harness, prompt: int) -> float:
    begin, request_id = harness.now, harness.submit(prompt, 1)
    while not harness.tokens(request_id):
        harness.step()
    return harness.now - begin


@pytest.mark.parametrize("prompt", [1, 7, 60, 90])
def test_an_idle_lane_never_refuses_a_deadline_of_twice_its_solo_ttft(prompt):
    harness = Harness()
    warm(harness)
    for _ in range(3):
        ttft = solo_ttft(harness, prompt)
        assert admitted(harness, prompt, 1, deadline=harness.now + 2 * ttft)
        harness.run()


def test_an_idle_lane_that_was_slow_once_does_not_refuse_for_ever():
    harness = Harness()
    harness.step_s = 10.0
    warm(harness)
    assert not admitted(harness, 60, 1, deadline=harness.now + 1.0)
    harness.now += 300.0
    assert admitted(harness, 60, 1, deadline=harness.now + 1.0)


def test_an_idle_lane_counts_cached_prompts_at_what_they_cost():
    harness = Harness()
    harness.step_s = 1.0
    prompt = list(range(40)) + list(range(40))
    harness.submit(prompt, 1)
    harness.run()
    assert admitted(harness, prompt, 1, deadline=harness.now + 1.1)
    assert not admitted(harness, prompt[::-1], 1, deadline=harness.now + 0.4)


def test_a_deadline_is_infeasible_only_when_the_first_token_misses_it():
    harness = Harness()
    harness.step_s = 0.1
    warm(harness)
    assert admitted(harness, 5, 30, deadline=harness.now + 0.5), "only the last token is late"
    harness.step()
    for _ in range(6):
        harness.submit(60, 30)
    error = refusal(harness, 60, 1, deadline=harness.now + 1.0)
    assert error.reason == "DEADLINE_INFEASIBLE"
    assert error.retry_after_s is not None


def test_a_deadline_below_the_prompts_own_time_gets_no_hint():
    harness = Harness()
    harness.step_s = 1.0
    warm(harness)
    error = refusal(harness, 90, 1, deadline=harness.now + 0.01)
    assert (error.reason, error.retry_after_s) == ("DEADLINE_INFEASIBLE", None)


def test_cached_prompt_tokens_are_no_work_for_a_newcomer_nor_for_what_waits():
    def taken(*, warmed: bool) -> int:
        harness = Harness(replace(LIMITS, max_queue_s=1.0, max_queue_pools=1e9), LARGE)
        harness.step_s = 0.05
        warm(harness)
        prompt = list(range(50)) * 40
        if warmed:
            harness.submit(prompt, 1)
            harness.run()
        count = 0
        while count < 200 and admitted(harness, prompt, 1):
            count += 1
        return count

    assert taken(warmed=True) > 5 * taken(warmed=False)


def test_pages_that_running_requests_hold_are_not_counted_again_for_one_that_shares_them():
    harness = Harness(LIMITS, replace(LARGE, page_count=200))
    harness.step_s = 0.05
    warm(harness)
    prompt = list(range(50)) * 32
    first = harness.submit([*prompt, 49], 100)
    while not harness.tokens(first):
        harness.step()
    for own in range(15):
        harness.submit([*prompt, own], 60)
        harness.step()
    assert harness.lane.status().running == 16
    last = harness.submit([*prompt, 40], 60, deadline=harness.now + 1.0)
    harness.step()
    assert harness.tokens(last)
