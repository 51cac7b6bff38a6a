"""Gateways come, follow, hand over, break off and return in any order; workers and schedulers die."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kit.errors import ServiceError
from services.scheduler.core.messages import Output
from tests.property.scheduler_core.gateways import RESUME_LEASE_S, House, View

GATEWAYS = ("a", "b", "c")
gateways = st.sampled_from(GATEWAYS)


class DeskMachine(RuleBasedStateMachine):
    """Whatever happens, each stream's account is whole and each request is closed exactly once."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House()
        for gateway in GATEWAYS:
            self.house.open(gateway)

    def known(self) -> list[tuple[str, int]]:
        """Which open stream knows which request."""
        house = self.house
        return [(stream, one) for stream in house.current.values() for one in sorted(house.views[stream])]

    @precondition(lambda self: self.house.current)
    @rule(
        data=st.data(),
        prompt=st.integers(1, 10),
        output=st.integers(1, 12),
        n=st.sampled_from([1, 1, 2]),
        resume=st.booleans(),
        lease_s=st.sampled_from([0.0, RESUME_LEASE_S]),
    )
    def submit(self, data, prompt, output, n, resume, lease_s):
        house = self.house
        stream = house.current[data.draw(st.sampled_from(sorted(house.current)))]
        house.submit(stream, house.make(prompt, output, n, resume), lease_s)

    @rule(gateway=gateways)
    def reconnect(self, gateway):
        self.house.deliver()
        self.house.open(gateway)

    @rule(gateway=gateways)
    def lose_gateway(self, gateway):
        self.house.close(gateway)

    @precondition(lambda self: self.house.current and self.house.requests)
    @rule(data=st.data())
    def attach(self, data):
        house = self.house
        stream = house.current[data.draw(st.sampled_from(sorted(house.current)))]
        request_id = data.draw(st.sampled_from(sorted(house.requests)))
        with suppress(ServiceError):  # lost with an earlier scheduler
            house.desk.attach_stream(stream, request_id, "acme", house.now, above=house.epochs[request_id])

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def detach(self, data):
        self.house.deliver()
        self.house.detach(*data.draw(st.sampled_from(self.known())))

    @precondition(lambda self: self.known())
    @rule(data=st.data(), stale=st.integers(0, 1))
    def settle(self, data, stale):
        stream, request_id = data.draw(st.sampled_from(self.known()))
        self.house.settle(stream, request_id, self.house.views[stream][request_id].epoch - stale)

    @precondition(lambda self: self.house.requests)
    @rule(data=st.data())
    def cancel(self, data):
        self.house.desk.cancel(data.draw(st.sampled_from(sorted(self.house.requests))), self.house.now)

    @rule(count=st.integers(1, 5))
    def step(self, count):
        for _ in range(count):
            self.house.step()

    @rule()
    def deliver(self):
        self.house.deliver()

    @rule()
    def give_words(self):
        self.house.give_words()

    @rule()
    def deliver_all(self):
        self.house.deliver_all()

    @rule(seconds=st.integers(1, 16))
    def wait(self, seconds):
        self.house.pass_time(seconds)

    @rule()
    def lose_worker(self):
        self.house.attach_worker()

    @rule(survivors=st.sets(gateways))
    def lose_scheduler(self, survivors):
        """Owners that live close what they may not resume; the rest they submit again with its output."""
        house, old = self.house, self.house.desk
        held = [
            (request_id, house.views[stream][request_id])
            for request_id in house.requests
            if (stream := old.ownership.owner_of(request_id)) in house.current.values()
            and request_id in house.views[stream]
            and house.views[stream][request_id].epoch == old.ownership.epoch_of(request_id)
        ]
        lost = {one for one in house.requests if one in old.ownership} - {one for one, _ in held}
        house.begin()
        for gateway in GATEWAYS:
            if gateway in survivors or gateway == "a":
                house.open(gateway)
        for request_id, view in held:
            self.go_on("a", request_id, view)
        for request_id in lost:  # its owner had not heard that it is, or died too: unresolved
            del house.requests[request_id]

    def go_on(self, gateway: str, request_id: int, view: View) -> None:
        request, lease_s = self.house.requests[request_id]
        if any(view.tokens) and not request.resume:
            self.house.closed[request_id] += 1
            return
        output = tuple(
            Output(tuple(tokens), (), view.ends.get(choice)) for choice, tokens in enumerate(view.tokens)
        )
        output = output if any(one.token_ids or one.finish_reason for one in output) else ()
        stream = self.house.current[gateway]
        self.house.submit(stream, replace(request, output=output), lease_s, above=view.epoch)

    @invariant()
    def promises_hold(self):
        self.house.check()

    def teardown(self):
        house = self.house
        for _ in range(40):
            house.step()
        house.deliver_all()
        for gateway in GATEWAYS:
            house.close(gateway)
        house.pass_time(80)
        assert all(house.closed[request_id] == 1 for request_id in house.requests)
        assert len(house.desk.ownership.orphans) == house.desk.ownership.followed == 0
        status = house.desk.lanes["toy@1"].status()
        assert (status.requests, status.owned_pages) == (0, 0)
        house.check()


DeskMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestDeskMachine = DeskMachine.TestCase
