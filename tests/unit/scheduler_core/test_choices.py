"""Several choices of one request: they share the prompt's full pages and end one by one."""

from dataclasses import replace

from services.scheduler.core.messages import FinishReason, Sampling
from tests.unit.scheduler_core.harness import CAPACITY, LIMITS, Harness


def test_choices_share_full_prompt_pages_and_compute_the_partial_one_themselves():
    harness = Harness()
    request_id = harness.submit(18, 4, n=3)
    while len(harness.workers["w0"].residents) < 3:
        harness.step()
    pages = [one.pages for one in harness.workers["w0"].residents.values()]
    assert {tuple(held[:4]) for held in pages} == {tuple(pages[0][:4])}
    assert len({held[4] for held in pages}) == 3
    harness.run()
    for choice in range(3):
        assert harness.tokens(request_id, choice) == harness.expected(request_id, choice)
    assert harness.lane.counters.prefill_tokens == 18 + 2 * 2


def test_choices_differ_and_are_billed_one_prompt():
    harness = Harness()
    request_id = harness.submit(18, 8, n=2)
    harness.run()
    assert harness.tokens(request_id, 0) != harness.tokens(request_id, 1)
    assert harness.callers[request_id].end.input_tokens == 18
    assert harness.callers[request_id].end.cached_tokens == 0


def test_a_request_ends_with_its_last_choice():
    harness = Harness()
    request_id = harness.submit(8, 6, n=2)
    harness.step()
    harness.cancel(request_id, choice=0, kept_tokens=0, reason=FinishReason.STOP)
    assert harness.reason(request_id, 0) is FinishReason.STOP
    assert harness.callers[request_id].end is None
    harness.run()
    assert harness.reason(request_id, 1) is FinishReason.LENGTH
    assert harness.callers[request_id].ends[0].output_tokens == 0


def test_when_the_first_choice_leaves_early_the_others_compute_the_prompt():
    harness = Harness(capacity=replace(CAPACITY, max_step_tokens=8))
    request_id = harness.submit(30, 4, n=3)
    harness.step()
    harness.cancel(request_id, choice=0)
    harness.run()
    for choice in (1, 2):
        assert harness.tokens(request_id, choice) == harness.expected(request_id, choice)


def test_choices_gather_where_their_prompt_is():
    harness = Harness(replicas=2)
    harness.submit(24, 12, n=4)
    for _ in range(12):
        harness.step()
    assert sorted(len(worker.residents) for worker in harness.workers.values()) == [0, 4]


def test_choices_do_not_wait_for_ever_for_their_home():
    harness = Harness(replace(LIMITS, prefix_wait_s=0.2), replace(CAPACITY, slot_count=1), replicas=2)
    request_id = harness.submit(8, 60, n=2)
    harness.step()
    while not harness.tokens(request_id, 1):
        assert len(harness.tokens(request_id, 0)) < 50
        harness.step()


def test_log_probabilities_come_with_their_token():
    harness = Harness()
    harness.submit(4, 8, n=2, sampling=Sampling(seed=1, top_logprobs=2))
    harness.step()
    harness.plan()
    harness.lane.commit("w0", harness.results["w0"].popleft(), harness.now)
    tokens = harness.drain_effects()
    assert [token.choice for token in tokens] == [0, 1]
    assert all(token.logprobs.logprob == -token.token_id for token in tokens)


def test_of_a_choice_that_its_owner_stopped_only_the_kept_tokens_count():
    harness = Harness()
    request_id = harness.submit(4, 8, n=2)
    for _ in range(4):
        harness.step()
    harness.cancel(request_id, choice=0, kept_tokens=2, reason=FinishReason.STOP)
    assert harness.callers[request_id].ends[0].output_tokens == 2
    harness.run()
    assert harness.callers[request_id].ends[1].output_tokens == 8
