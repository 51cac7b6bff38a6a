"""Any history of a lane keeps its promises: pages, protocol, tokens, one terminal message each."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import Capacity, Priority, Sampling
from tests.unit.scheduler_core.harness import Harness

STEPS_TO_FINISH = 4000
LANE_PARTS = {
    "page_count": st.integers(6, 24),
    "slot_count": st.integers(1, 6),
    "max_step_tokens": st.integers(2, 24),
}
MOST_WORK_S = 0.6

SHARED = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


class LaneMachine(RuleBasedStateMachine):
    """Callers, workers and the clock act in any order."""

    @initialize(
        depth=st.sampled_from([1, 2]),
        **LANE_PARTS,
        chunk_tokens=st.integers(1, 12),
        watermark=st.sampled_from([0.0, 0.05, 0.3]),
        replicas=st.integers(1, 2),
    )
    def begin(
        self,
        depth: int,
        page_count: int,
        slot_count: int,
        max_step_tokens: int,
        chunk_tokens: int,
        watermark: float,
        replicas: int,
    ) -> None:
        limits = LaneLimits(
            pipeline_depth=depth,
            chunk_tokens=chunk_tokens,
            watermark=watermark,
            max_queue_s=MOST_WORK_S,
            prefix_wait_s=0.2,
            bypass_s=0.3,
        )
        capacity = Capacity(4, page_count, slot_count, max_step_tokens, 40, 12)
        self.harness = Harness(limits, capacity, replicas)
        self.draining: set[str] = set()
        self.attached = replicas

    @rule(
        shared=st.integers(0, len(SHARED)),
        own=st.lists(st.integers(0, 11), max_size=10),
        output=st.integers(1, 24),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        tenant=st.sampled_from(["a", "b"]),
        priority=st.sampled_from(list(Priority)),
        stop=st.frozensets(st.integers(0, 11), max_size=2),
        logprobs=st.sampled_from([None, 0]),
        wait_s=st.none() | st.floats(-0.01, 1.0),
        resume=st.booleans(),
    )
    def submit(self, shared, own, output, n, tenant, priority, stop, logprobs, wait_s, resume):
        harness = self.harness
        prompt = SHARED[:shared] + own
        before = harness.lane.status()
        waiting_before = before.waiting
        refusals_before = sum(harness.lane.counters.refusals.values())
        request = harness.request(
            prompt, output, n=n, tenant_id=tenant, priority=priority, stop_token_ids=stop,
            deadline=None if wait_s is None else harness.now + wait_s, resume=resume,
        )  # fmt: skip
        sampling = Sampling(seed=request.request_id, top_logprobs=logprobs)
        fields = {name: getattr(request, name) for name in request.__dataclass_fields__}
        refusal = None
        try:
            harness.submit_request(type(request)(**(fields | {"sampling": sampling})))
        except AdmissionError as error:
            refusal = error
        if refusal is not None:
            assert sum(harness.lane.counters.refusals.values()) == refusals_before + 1
            assert harness.lane.status().waiting == waiting_before
            assert refusal.reason not in {"QUEUE_FULL", "KV_EXHAUSTED"} or waiting_before
            assert refusal.retry_after_s is None or refusal.retry_after_s > 0
        elif waiting_before:
            # Each class bounds what waits before it; the least class sees everything.
            assert before.queue_s <= MOST_WORK_S or priority is not Priority.BATCH or self.draining

    @precondition(lambda self: self.harness.callers)
    @rule(data=st.data())
    def cancel(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.harness.callers)))
        self.harness.cancel(request_id)
        assert self.harness.callers[request_id].end is not None

    @precondition(lambda self: self.harness.callers)
    @rule(data=st.data(), kept=st.none() | st.integers(0, 5))
    def cancel_choice(self, data, kept):
        request_id = data.draw(st.sampled_from(sorted(self.harness.callers)))
        choice = data.draw(st.integers(0, self.harness.callers[request_id].request.n - 1))
        self.harness.cancel(request_id, choice=choice, kept_tokens=kept)
        assert choice in self.harness.callers[request_id].ends

    @precondition(lambda self: self.harness.workers)
    @rule(data=st.data())
    def plan(self, data):
        self.harness.plan(data.draw(st.sampled_from(sorted(self.harness.workers))))

    @precondition(lambda self: any(self.harness.results.values()))
    @rule(data=st.data())
    def commit(self, data):
        ready = sorted(name for name, results in self.harness.results.items() if results)
        self.harness.commit(data.draw(st.sampled_from(ready)))

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.harness.step()

    @rule(seconds=st.floats(0.0, 0.5))
    def wait(self, seconds):
        self.harness.now += seconds
        self.harness.lane.expire(self.harness.now)
        self.harness.drain_effects()
        deadline = self.harness.lane.next_deadline()
        assert deadline is None or deadline > self.harness.now

    @precondition(lambda self: any(one.residents for one in self.harness.workers.values()))
    @rule(data=st.data())
    def poison(self, data):
        worker = data.draw(st.sampled_from([one for one in self.harness.workers.values() if one.residents]))
        slot = data.draw(st.sampled_from(sorted(worker.residents)))
        worker.failing.add(worker.residents[slot].new.sequence_id)

    @precondition(lambda self: self.harness.workers)
    @rule(data=st.data(), restart=st.sampled_from([True, True, True, False]))
    def lose_worker(self, data, restart):
        name = data.draw(st.sampled_from(sorted(self.harness.workers)))
        self.draining.discard(name)
        if restart:
            self.harness.attach(name)
        else:
            self.harness.lose(name)

    @precondition(lambda self: len(self.harness.workers) < 3)
    @rule()
    def add_worker(self):
        self.attached += 1
        self.harness.attach(f"w{self.attached}")

    @precondition(lambda self: len(set(self.harness.workers) - self.draining) > 1)
    @rule(data=st.data())
    def drain_worker(self, data):
        name = data.draw(st.sampled_from(sorted(set(self.harness.workers) - self.draining)))
        self.draining.add(name)
        self.harness.lane.drain_replica(name)

    @precondition(lambda self: self.harness.landed)
    @rule(data=st.data())
    def repeat_result(self, data):
        name, result = data.draw(st.sampled_from(self.harness.landed))
        stale = self.harness.lane.counters.stale_results
        self.harness.lane.commit(name, result, self.harness.now)
        assert self.harness.lane.counters.stale_results == stale + 1
        assert self.harness.drain_effects() == []

    @invariant()
    def accounts_agree(self):
        assert self.harness.lane.check_integrity() == []

    @invariant()
    def live_requests_are_those_without_a_terminal_message(self):
        live = sum(caller.end is None for caller in self.harness.callers.values())
        assert self.harness.lane.status().requests == live

    def teardown(self):
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        if not set(harness.workers) - self.draining:
            harness.attach("last")
        harness.run(STEPS_TO_FINISH)
        status = harness.lane.status()
        assert (status.waiting, status.running, status.owned_pages) == (0, 0, 0)
        assert all(caller.end is not None for caller in harness.callers.values())
        assert harness.lane.next_deadline() is None


LaneMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLaneMachine = LaneMachine.TestCase


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.lists(st.integers(0, 11), min_size=1, max_size=24),
            st.integers(1, 24),
            st.sampled_from([1, 1, 2]),
            st.frozensets(st.integers(0, 11), max_size=1),
        ),
        min_size=1,
        max_size=8,
    ),
    capacity=st.fixed_dictionaries(LANE_PARTS),
)
def test_depth_1_and_2_give_identical_tokens(requests, capacity):
    heard = []
    for depth in (1, 2):
        limits = LaneLimits(pipeline_depth=depth, chunk_tokens=6, watermark=0.0, max_queue_s=1e9)
        harness = Harness(limits, Capacity(page_size=4, context_length=40, vocab_size=12, **capacity))
        for prompt, output, n, stop in requests:
            request = harness.request(prompt, output, n=n, stop_token_ids=stop)
            with suppress(AdmissionError):
                harness.submit_request(request)
        harness.run(STEPS_TO_FINISH)
        heard.append({name: (caller.tokens, caller.ends) for name, caller in harness.callers.items()})
    assert heard[0] == heard[1]
