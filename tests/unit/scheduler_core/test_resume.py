"""What goes on after the loss of a worker or of the scheduler, and what does not."""

from dataclasses import replace

import pytest

from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.messages import FinishReason, Output, Sampling
from tests.unit.scheduler_core.harness import CAPACITY, Harness


def undisturbed(request):
    harness = Harness()
    harness.submit_request(request)
    harness.run()
    return [harness.tokens(request.request_id, choice) for choice in range(request.n)]


def begun(request, *lengths, ended=()):
    """Make a request that a lost scheduler had brought to so many tokens a choice."""
    tokens = [oracle[:length] for oracle, length in zip(undisturbed(request), lengths, strict=True)]
    output = tuple(
        Output(tuple(known), (), FinishReason.STOP if choice in ended else None)
        for choice, known in enumerate(tokens)
    )
    return replace(request, output=output)


def heard(harness, request):
    harness.submit_request(request)
    caller = harness.callers[request.request_id]
    caller.tokens = [list(one.token_ids) for one in request.output]
    return caller


@pytest.mark.parametrize("n", [1, 3])
def test_a_resumable_request_goes_on_with_its_tokens_after_every_loss_of_its_worker(n):
    harness = Harness()
    request_id = harness.submit(6, 30, n=n, resume=True, stop_token_ids=frozenset({3}))
    for _ in range(5):
        for _ in range(4):
            harness.step()
        harness.attach("w0")
    harness.run()
    for choice in range(n):
        assert harness.tokens(request_id, choice) == harness.expected(request_id, choice)
        assert harness.reason(request_id, choice) in {FinishReason.STOP, FinishReason.LENGTH}
    assert harness.lane.counters.resumed_sequences > 0
    assert harness.lane.counters.recomputed_tokens > 0


def test_a_resumed_sequence_keeps_where_its_output_began():
    harness = Harness()
    harness.submit(6, 10, resume=True)
    for _ in range(4):
        harness.step()
    harness.attach("w0")
    (added,) = harness.plan().add
    assert (added.prompt_len, len(added.token_ids), added.computed_len) == (6, 10, 0)


def test_a_worker_that_dies_on_the_same_request_again_and_again_ends_it():
    harness = Harness()
    request_id = harness.submit(6, 30, resume=True)
    harness.step()
    harness.step()
    losses = 0
    while harness.reason(request_id) is None:
        harness.plan()
        harness.attach("w0")
        losses += 1
    assert losses == 4
    end = harness.callers[request_id].ends[0]
    assert (end.reason, end.output_tokens) == (FinishReason.INCOMPLETE, 2)


def test_a_token_in_between_forgives_earlier_losses():
    harness = Harness()
    request_id = harness.submit(6, 30, resume=True)
    harness.step()
    for _ in range(12):
        harness.step()
        harness.attach("w0")
    assert harness.reason(request_id) is None


def test_a_resumable_request_without_a_token_fails_like_any_other():
    harness = Harness(capacity=replace(CAPACITY, max_step_tokens=8))
    request_id = harness.submit(40, 5, resume=True)
    for _ in range(2):
        harness.step()
        harness.attach("w0")
    end = harness.callers[request_id].ends[0]
    assert (end.reason, end.error_reason) == (FinishReason.ERROR, "WORKER_LOST")


def test_a_choice_that_cannot_go_on_ends_its_whole_request_as_incomplete():
    harness = Harness(capacity=replace(CAPACITY, slot_count=1))
    request_id = harness.submit(6, 30, n=3)
    bystander = harness.submit(6, 4)
    harness.step()
    assert harness.tokens(request_id, 0)
    assert not harness.tokens(request_id, 2)
    harness.attach("w0")
    assert [harness.reason(request_id, choice) for choice in range(3)] == [FinishReason.INCOMPLETE] * 3
    assert harness.reason(bystander) is None
    harness.run()


def test_a_choice_lost_twice_before_its_token_is_incomplete_when_another_choice_has_tokens():
    harness = Harness(capacity=replace(CAPACITY, slot_count=1), replicas=2)
    request_id = harness.submit(6, 30, n=2)
    harness.plan("w0")
    harness.plan("w1")
    home, other = sorted(harness.workers, key=lambda name: not harness.results[name])
    harness.commit(home)
    for _ in range(200):
        if harness.reason(request_id, 1) is not None:
            break
        harness.now += 0.5
        if harness.plan(other) is not None:
            harness.attach(other)
        elif harness.plan(home) is not None:
            harness.commit(home)
    ends = [harness.reason(request_id, choice) for choice in range(2)]
    assert FinishReason.ERROR not in ends


def test_choices_that_ended_by_themselves_keep_their_end_when_the_worker_is_lost():
    harness = Harness()
    request_id = harness.submit(6, 30, n=2)
    harness.step()
    harness.step()
    harness.cancel(request_id, choice=0, kept_tokens=1, reason=FinishReason.STOP)
    harness.attach("w0")
    assert harness.reason(request_id, 0) is FinishReason.STOP
    assert harness.reason(request_id, 1) is FinishReason.INCOMPLETE


def test_a_successor_goes_on_from_prompt_and_output_to_the_same_tokens():
    harness = Harness()
    request = begun(harness.request(6, 12, n=2, sampling=Sampling(seed=1)), 5, 2)
    heard(harness, request)
    harness.run()
    assert [harness.tokens(1, choice) for choice in range(2)] == undisturbed(replace(request, output=()))
    assert harness.callers[1].end.input_tokens == 6
    assert harness.callers[1].end.cached_tokens <= 6


def test_a_successor_leaves_ended_choices_ended():
    harness = Harness()
    request = begun(harness.request(6, 12, n=2), 5, 2, ended={0})
    caller = heard(harness, request)
    caller.ends[0] = None  # told by the lost scheduler
    harness.run()
    assert len(harness.tokens(request.request_id, 0)) == 5
    assert len(harness.tokens(request.request_id, 1)) == 12
    assert harness.reason(request.request_id, 1) is FinishReason.LENGTH


def test_output_that_is_complete_ends_at_once_for_the_reason_it_has():
    harness = Harness()
    whole = begun(harness.request(6, 4), 4)
    harness.lane.submit(whole, harness.now)
    (end, terminal) = harness.lane.effects()
    assert (end.reason, end.output_tokens, terminal.input_tokens) == (FinishReason.LENGTH, 4, 6)
    stopped = harness.request(6, 9)
    last = undisturbed(stopped)[0][2]
    stopped = begun(stopped, 3)
    harness.lane.submit(replace(stopped, stop_token_ids=frozenset({last})), harness.now)
    assert harness.lane.effects()[0].reason is FinishReason.STOP
    ended = begun(harness.request(6, 9), 3, ended={0})
    harness.lane.submit(ended, harness.now)
    (terminal,) = harness.lane.effects()
    assert terminal.request_id == ended.request_id
    assert harness.lane.check_integrity() == []
    assert harness.lane.status().requests == 0


def test_what_had_begun_before_the_scheduler_was_lost_goes_before_what_is_new():
    harness = Harness(capacity=replace(CAPACITY, slot_count=1))
    new = harness.submit(6, 4)
    old = begun(harness.request(6, 12), 5)
    heard(harness, old)
    harness.step()
    harness.step()
    assert len(harness.tokens(old.request_id)) == 6
    assert harness.tokens(new) == []
    harness.run()


@pytest.mark.parametrize(
    "output",
    [
        (Output((1,)), Output((1,))),
        (Output((1, 2, 3, 4, 5)),),
        (Output((50,)),),
        (Output((-1,)),),
    ],
)
def test_output_that_the_model_could_not_have_made_is_refused(output):
    harness = Harness()
    with pytest.raises(AdmissionError) as refusal:
        harness.lane.submit(replace(harness.request(6, 4), output=output), harness.now)
    assert (refusal.value.reason, refusal.value.field) == ("INVALID_REQUEST", "output")


def test_a_deadline_ends_what_waits_for_another_worker_and_keeps_what_it_has():
    harness = Harness()
    request_id = harness.submit(6, 30, resume=True, deadline=harness.now + 1)
    harness.step()
    harness.lose("w0")
    harness.now += 1
    harness.lane.expire(harness.now)
    harness.drain_effects()
    end = harness.callers[request_id].ends[0]
    assert (end.reason, end.output_tokens) == (FinishReason.DEADLINE, 1)
