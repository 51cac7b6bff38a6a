"""Every way a request ends, and what its terminal message says."""

from dataclasses import replace

import pytest

from services.scheduler.core.messages import FinishReason, Priority
from tests.unit.scheduler_core.harness import CAPACITY, Harness


def test_length_ends_at_the_output_limit():
    harness = Harness()
    request_id = harness.submit(5, 7)
    harness.run()
    assert harness.reason(request_id) is FinishReason.LENGTH
    assert len(harness.tokens(request_id)) == 7


def test_length_ends_at_the_context_even_when_more_was_asked_for():
    harness = Harness()
    request_id = harness.submit(90, 50)
    harness.run()
    assert harness.reason(request_id) is FinishReason.LENGTH
    assert len(harness.tokens(request_id)) == 6


@pytest.mark.parametrize("position", [0, 2, 5])
def test_a_stop_token_ends_with_stop_and_counts_even_as_the_last_one_allowed(position):
    harness = Harness()
    plain = harness.request(5, 6)
    probe = Harness()
    produced = probe.submit_request(plain)
    probe.run()
    stop = probe.tokens(produced)[position]
    first = probe.tokens(produced).index(stop)
    request_id = harness.submit_request(replace(plain, stop_token_ids=frozenset({stop})))
    harness.run()
    assert harness.reason(request_id) is FinishReason.STOP
    assert harness.tokens(request_id) == probe.tokens(produced)[: first + 1]


def test_one_output_token_is_enough():
    harness = Harness()
    request_id = harness.submit(5, 1)
    harness.run()
    assert harness.tokens(request_id) == harness.expected(request_id)
    assert len(harness.plans) == 1


def test_a_deadline_ends_what_waits_and_bills_no_input():
    harness = Harness(capacity=replace(CAPACITY, slot_count=1))
    waiting = harness.submit(5, 5, deadline=harness.now + 0.3, priority=Priority.BATCH)
    harness.submit(5, 60, priority=Priority.INTERACTIVE)
    assert harness.lane.next_deadline() == pytest.approx(harness.now + 0.3)
    while harness.reason(waiting) is None:
        harness.step()
    assert harness.reason(waiting) is FinishReason.DEADLINE
    assert harness.callers[waiting].end.input_tokens == 0
    assert harness.callers[waiting].end.queue_s == pytest.approx(0.3, abs=0.011)
    assert harness.lane.counters.deadline_misses == 1


def test_a_deadline_ends_what_runs_and_keeps_what_it_produced():
    harness = Harness()
    request_id = harness.submit(5, 60, deadline=harness.now + 0.1)
    while harness.reason(request_id) is None:
        harness.step()
    end = harness.callers[request_id].ends[0]
    assert end.reason is FinishReason.DEADLINE
    assert end.output_tokens == len(harness.tokens(request_id)) > 5
    assert harness.callers[request_id].end.input_tokens == 5


def test_a_deadline_ends_a_prompt_in_the_middle_of_its_prefill():
    harness = Harness(capacity=replace(CAPACITY, max_step_tokens=8))
    request_id = harness.submit(40, 5, deadline=harness.now + 10)
    harness.step()
    harness.step()
    harness.now += 10
    assert harness.plan() is None
    assert harness.reason(request_id) is FinishReason.DEADLINE
    assert (harness.tokens(request_id), harness.callers[request_id].end.input_tokens) == ([], 40)
    assert harness.lane.status().owned_pages == 0


def test_the_owner_says_how_many_tokens_a_stop_string_keeps():
    harness = Harness()
    request_id = harness.submit(5, 60)
    for _ in range(6):
        harness.step()
    harness.cancel(request_id, kept_tokens=3, reason=FinishReason.STOP)
    end = harness.callers[request_id].ends[0]
    assert (end.reason, end.output_tokens) == (FinishReason.STOP, 3)


def test_no_owner_keeps_more_than_was_committed():
    harness = Harness()
    request_id = harness.submit(5, 60)
    harness.step()
    harness.cancel(request_id, kept_tokens=1000)
    assert harness.callers[request_id].ends[0].output_tokens == 1


def test_a_failed_row_ends_its_request_alone():
    harness = Harness()
    ids = [harness.submit(5, 8) for _ in range(4)]
    harness.step()
    worker = harness.workers["w0"]
    victim = worker.residents[1]
    worker.failing.add(victim.new.sequence_id)
    harness.run()
    failed = victim.new.sampling.seed
    for request_id in ids:
        expected = FinishReason.ERROR if request_id == failed else FinishReason.LENGTH
        assert harness.reason(request_id) is expected
    assert harness.callers[failed].ends[0].error_reason == "NAN_LOGITS"
    assert harness.lane.counters.row_errors == 1


@pytest.mark.parametrize("token", [-1, 50])
def test_a_token_outside_the_vocabulary_ends_its_request_alone(token):
    harness = Harness()
    bad, good = harness.submit(3, 4), harness.submit(3, 4)
    harness.plan()
    result = harness.results["w0"][0]
    result.token_id[result.slot.index(0)] = token
    harness.commit()
    harness.run()
    assert harness.callers[bad].ends[0].error_reason == "BAD_TOKEN"
    assert harness.tokens(good) == harness.expected(good)


def test_a_missing_token_ends_its_request_instead_of_hanging_it():
    harness = Harness()
    request_id = harness.submit(3, 4)
    harness.plan()
    harness.results["w0"][0].slot.clear()
    harness.results["w0"][0].token_id.clear()
    harness.commit()
    assert harness.reason(request_id) is FinishReason.ERROR


def test_the_terminal_message_counts_cached_tokens_and_time_in_the_queue():
    harness = Harness()
    prompt = list(range(20))
    harness.submit(prompt, 1)
    harness.run()
    harness.now += 1.0
    request_id = harness.submit(prompt, 1)
    harness.now += 0.25
    harness.run()
    end = harness.callers[request_id].end
    assert (end.input_tokens, end.cached_tokens) == (20, 16)
    assert end.queue_s == pytest.approx(0.25)
