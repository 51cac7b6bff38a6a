"""What went wrong in other platforms around their schedulers; each test is named after what it keeps out."""

from dataclasses import replace

import pytest

from services.scheduler.core.messages import FinishReason, Priority
from tests.unit.scheduler_core.harness import CAPACITY, LIMITS, Harness


def test_a_hot_prefix_does_not_pin_one_worker_while_its_peers_idle():
    harness = Harness(capacity=replace(CAPACITY, page_count=200), replicas=4)
    prompt = list(range(40))
    harness.submit(prompt, 1)
    harness.run()
    for _ in range(24):
        harness.submit(prompt, 30)
    for _ in range(8):  # those that have not got the prefix yet compute it first
        harness.step()
    busy = [len(worker.residents) for worker in harness.workers.values()]
    assert sum(busy) == 24
    assert min(busy) >= 24 / 4 / 2


@pytest.mark.parametrize("depth", [1, 2])
def test_no_decode_reads_pages_that_were_freed_and_given_to_another(depth):
    """The workers of these tests refuse a row whose pages hold anything but its own tokens."""
    limits = replace(LIMITS, pipeline_depth=depth, watermark=0.0)
    harness = Harness(limits, replace(CAPACITY, page_count=14))
    stays = harness.submit(8, 45, priority=Priority.INTERACTIVE)
    handed: list[int] = []
    for _ in range(12):
        leaves = harness.submit(16, 40)
        for _ in range(3):
            harness.step()
        for one in harness.workers["w0"].residents.values():
            handed += one.pages if one.new.sampling.seed == leaves else []
        harness.plan()
        harness.cancel(leaves)
    harness.run()
    assert len(set(handed)) < len(handed), "nothing was given out twice"
    assert harness.tokens(stays) == harness.expected(stays)


def test_a_reader_of_an_attachment_that_is_over_gets_nothing():
    harness = Harness(replace(LIMITS, pipeline_depth=2))
    request_id = harness.submit(8, 6)
    harness.step()
    late = list(harness.results["w0"])
    heard = list(harness.tokens(request_id))
    harness.attach("w0")
    for result in late:
        harness.lane.commit("w0", result, harness.now)
    assert harness.tokens(request_id) == heard
    assert harness.lane.counters.stale_results == len(late) > 0
    assert harness.reason(request_id) is FinishReason.INCOMPLETE


def test_a_kv_layout_changed_with_an_upgrade_never_hits_old_pages():
    harness = Harness(replicas=2)
    prompt = list(range(40))
    for _ in range(4):
        harness.submit(prompt, 1)
    harness.run()
    waits = harness.submit(prompt, 4)
    harness.attach("w0", replace(CAPACITY, page_size=8, page_count=16))
    harness.lose("w1")
    harness.run()
    assert harness.callers[waits].end.cached_tokens == 0
    assert harness.tokens(waits) == harness.expected(waits)
    again = harness.submit(prompt, 4)
    harness.run()
    assert harness.callers[again].end.cached_tokens == 32
