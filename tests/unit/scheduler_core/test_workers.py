"""Workers come, share the work, drain and die."""

from dataclasses import replace

from services.scheduler.core.messages import FinishReason
from tests.unit.scheduler_core.harness import CAPACITY, LIMITS, Harness


def test_two_workers_share_a_burst_whoever_asks_first():
    harness = Harness(replicas=2)
    for _ in range(8):
        harness.submit(8, 20)
    harness.step()
    assert [len(worker.residents) for worker in harness.workers.values()] == [4, 4]


def test_a_single_request_goes_to_the_less_loaded_worker():
    harness = Harness(replicas=2)
    harness.submit(40, 40)
    harness.step()
    loaded = next(name for name, worker in harness.workers.items() if worker.residents)
    harness.submit(4, 4)
    plan = harness.plan(loaded)
    assert plan.add == []
    other = ({"w0", "w1"} - {loaded}).pop()
    assert len(harness.plan(other).add) == 1


def test_work_is_not_left_to_a_peer_that_has_no_room():
    harness = Harness(replicas=2)
    harness.attach("w1", replace(CAPACITY, page_count=4))
    for _ in range(3):
        harness.submit(30, 10)
    harness.run()
    assert all(harness.reason(request_id) is FinishReason.LENGTH for request_id in harness.callers)


def test_work_is_left_only_for_a_while_to_a_peer_that_hangs():
    harness = Harness(replace(LIMITS, bypass_s=1.0), replicas=2)
    harness.submit(40, 40)
    assert harness.plan("w0") is not None
    waits = harness.submit(4, 4)
    harness.commit("w0")
    while not harness.tokens(waits):
        assert harness.now < 102.0
        harness.now += 0.1
        harness.plan("w0")
        harness.commit("w0")


def test_a_lost_worker_only_delays_what_had_no_token():
    harness = Harness(capacity=replace(CAPACITY, max_step_tokens=8))
    request_id = harness.submit(40, 5)
    harness.step()
    harness.lose("w0")
    assert harness.reason(request_id) is None
    assert harness.lane.status().waiting == 1
    harness.attach("w0")
    harness.run()
    assert harness.lane.counters.recomputed_tokens == 8
    assert harness.tokens(request_id) == harness.expected(request_id)


def test_a_lost_worker_ends_what_had_tokens_as_incomplete():
    harness = Harness()
    request_id = harness.submit(4, 50)
    harness.step()
    harness.step()
    harness.lose("w0")
    assert harness.reason(request_id) is FinishReason.INCOMPLETE
    assert harness.callers[request_id].ends[0].output_tokens == 2


def test_a_request_that_loses_two_workers_before_a_token_fails():
    harness = Harness(capacity=replace(CAPACITY, max_step_tokens=8))
    request_id = harness.submit(40, 5)
    for _ in range(2):
        harness.step()
        harness.attach("w0")
    end = harness.callers[request_id].ends[0]
    assert (end.reason, end.error_reason) == (FinishReason.ERROR, "WORKER_LOST")


def test_what_lost_its_worker_goes_before_what_came_later():
    harness = Harness(capacity=replace(CAPACITY, max_step_tokens=8, slot_count=1))
    early = harness.submit(40, 1)
    harness.step()
    late = harness.submit(3, 1)
    harness.attach("w0")
    while not harness.tokens(early):
        assert not harness.tokens(late)
        harness.step()


def test_a_restarted_worker_starts_with_an_empty_prefix_cache():
    harness = Harness()
    prompt = list(range(20))
    harness.submit(prompt, 1)
    harness.run()
    harness.attach("w0")
    request_id = harness.submit(prompt, 1)
    harness.run()
    assert harness.callers[request_id].end.cached_tokens == 0


def test_results_of_a_lost_worker_do_nothing():
    harness = Harness()
    request_id = harness.submit(4, 5)
    harness.plan()
    late = harness.results["w0"][0]
    harness.attach("w0")
    harness.lane.commit("w0", late, harness.now)
    assert harness.lane.effects() == []
    assert harness.tokens(request_id) == []
    harness.run()


def test_a_draining_worker_finishes_what_it_runs_and_takes_nothing_new():
    harness = Harness(replicas=2)
    running = [harness.submit(4, 10) for _ in range(2)]
    harness.step()
    harness.lane.drain_replica("w0")
    for _ in range(4):
        harness.submit(4, 4)
    harness.step()
    assert harness.lane.running("w0") == 1
    assert harness.lane.running("w1") == 5
    harness.run()
    assert all(harness.reason(request_id) is FinishReason.LENGTH for request_id in running)
    assert harness.lane.running("w0") == 0


def test_a_preempted_sequence_resumes_on_its_draining_worker():
    harness = Harness(replace(LIMITS, watermark=0.0), replace(CAPACITY, page_count=12))
    ids = [harness.submit(8, 20) for _ in range(3)]
    while not harness.lane.counters.preemptions:
        harness.step()
    harness.lane.drain_replica("w0")
    harness.run()
    assert all(harness.tokens(request_id) == harness.expected(request_id) for request_id in ids)


def test_an_idle_worker_is_probed_itself_and_no_other_answers_for_it():
    harness = Harness(replicas=2)
    for name in harness.workers:
        assert harness.lane.idle_since(name) == float("-inf")
    probe = harness.submit(1, 1, probes="w1")
    assert harness.plan("w0") is None
    assert harness.plan("w1") is not None
    harness.commit("w1")
    assert harness.reason(probe) is FinishReason.LENGTH
    assert harness.lane.idle_since("w1") == harness.now
    assert harness.lane.idle_since("w0") == float("-inf")


def test_a_probe_of_a_lost_worker_is_left_to_nobody():
    harness = Harness(replicas=2)
    probe = harness.submit(1, 1, probes="w1")
    harness.lose("w1")
    assert harness.reason(probe) is FinishReason.ERROR


def test_a_worker_that_runs_or_drains_is_not_idle():
    harness = Harness(replicas=2)
    harness.submit(4, 4)
    harness.step()
    busy = next(name for name, worker in harness.workers.items() if worker.residents)
    assert harness.lane.idle_since(busy) is None
    harness.run()
    assert harness.lane.idle_since(busy) is not None
    harness.lane.drain_replica(busy)
    assert harness.lane.idle_since(busy) is None


def test_probes_say_nothing_of_how_much_callers_use():
    harness = Harness()
    harness.submit_request(replace(harness.request(4, 90), stop_token_ids=frozenset(range(50))))
    harness.run()
    share = harness.lane._rates.output_share
    harness.submit(1, 1, probes="w0")
    harness.run()
    assert harness.lane._rates.output_share == share
