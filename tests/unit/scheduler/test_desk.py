"""The desk: lanes, ownership and records moved together."""

import pytest

from kit.errors import Code, ServiceError
from services.scheduler.core.desk import Desk
from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import (
    Capacity,
    ChoiceEnded,
    FinishReason,
    Request,
    RequestEnded,
    State,
    StepResult,
    TokenCommitted,
    Worker,
)
from services.scheduler.core.ownership import Ownership
from services.scheduler.core.records import Order, Records, Verdict

CAPACITY = Capacity(
    page_size=4, page_count=32, slot_count=8, max_step_tokens=64, context_length=64, vocab_size=100
)


class House:
    """A desk with one lane, driven by hand on a clock of its own."""

    def __init__(self) -> None:
        self.desk = Desk(
            Ownership(lease_s=10), Records(600, 1 << 20), lambda m: Lane(m, LaneLimits()), vacant_s=30
        )
        self.now = 0.0
        self.open("gw/1")
        self.attach()

    def open(self, owner):
        self.desk.ownership.renew(owner, self.now)

    def attach(self, epoch=1):
        self.desk.attach(Worker("w1", "m@1", "rev", CAPACITY, epoch), self.now)

    def submit(
        self, request_id=1, owner="gw/1", tenant="acme", output=4, prompt=(1, 2, 3), lease_s=0.0, **fields
    ):
        request = Request(request_id, tenant, prompt, output, **fields)
        order = Order(
            request_id, tenant, "m@1", "tok", "rev", len(prompt), b"", self.now, 1e9, resume_lease_s=lease_s
        )
        return self.desk.submit(owner, request, order, self.now)

    def step(self):
        plan = self.desk.lanes["m@1"].plan("w1", self.now)
        if plan is None:
            return None
        result = StepResult(plan.epoch, plan.step, list(plan.slot), [7] * len(plan.slot))
        self.desk.lanes["m@1"].commit("w1", result, self.now)
        return plan

    def pass_time(self, seconds, alive=()):
        gone, closings = [], []
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            for owner in alive:
                self.open(owner)
            more_gone, more = self.desk.expire(self.now)
            gone += more_gone
            closings += more
        return gone, closings

    def effects(self, owner="gw/1"):
        return self.desk.effects(self.now).get(owner, [])


@pytest.fixture
def house():
    return House()


def reason(call):
    with pytest.raises(ServiceError) as error:
        call()
    return error.value.code, error.value.reason


def test_a_request_runs_to_its_end_and_its_owner_is_told_all_in_order(house):
    assert house.submit() == 1
    while house.step():
        pass
    effects = house.effects()
    assert [type(effect) for effect in effects] == [TokenCommitted] * 4 + [ChoiceEnded, RequestEnded]
    record = house.desk.records.find(1, "acme")
    assert list(record.choices[0].token_ids) == [7] * 4


def test_without_a_worker_there_is_no_capacity(house):
    house.desk.detach("w1", house.now)
    assert reason(house.submit) == (Code.UNAVAILABLE, "NO_CAPACITY")


def test_draining_refuses_new_work_only(house):
    house.submit()
    house.desk.draining = ServiceError(Code.UNAVAILABLE, "DRAINING", "later")
    assert reason(lambda: house.submit(2)) == (Code.UNAVAILABLE, "DRAINING")
    assert house.step() is not None


def test_an_id_in_use_or_used_before_is_refused(house):
    house.submit()
    assert reason(house.submit)[1] == "INVALID_REQUEST"
    house.desk.settle("gw/1", 1, Verdict(1, FinishReason.CANCELLED, (0,)), house.now)
    assert reason(house.submit)[1] == "INVALID_REQUEST"
    assert reason(lambda: house.submit(0))[1] == "INVALID_REQUEST"


def test_decode_ends_when_the_gateway_is_gone_and_the_request_is_closed_once(house):
    house.submit(output=50)
    house.step()
    house.step()
    gone, closings = house.pass_time(11)
    assert gone == ["gw/1"]
    (closing,) = closings
    verdict = closing.verdict
    assert (verdict.owner_epoch, verdict.finish_reason) == (2, FinishReason.CANCELLED)
    assert (verdict.output_tokens, verdict.input_tokens) == ((2,), 3)
    assert house.step() is None
    status = house.desk.lanes["m@1"].status()
    assert (status.requests, status.owned_pages) == (0, 0)
    house.desk.settle("gw/1", 1, Verdict(1, FinishReason.LENGTH, (9,)), house.now)
    assert house.desk.records.find(1, "acme").verdict == verdict


def test_what_ended_by_itself_keeps_its_reason_when_the_scheduler_closes_it(house):
    house.submit(output=2)
    while house.step():
        pass
    _, (closing,) = house.pass_time(11)
    assert closing.verdict.finish_reason is FinishReason.LENGTH
    assert closing.verdict.output_tokens == (2,)


def test_a_settled_request_is_not_closed_again(house):
    house.submit(output=1)
    house.step()
    house.desk.settle("gw/1", 1, Verdict(1, FinishReason.LENGTH, (1,)), house.now)
    assert house.pass_time(11) == (["gw/1"], [])


def test_settling_a_running_request_ends_it(house):
    house.submit(output=50)
    house.step()
    house.desk.settle("gw/1", 1, Verdict(1, FinishReason.STOP, (1,)), house.now)
    assert house.step() is None
    assert house.desk.lanes["m@1"].status().owned_pages == 0


def test_a_request_without_tokens_is_submitted_again_by_its_own_gateway_only(house):
    house.submit(output=50)
    house.open("gw/2")
    house.open("other/1")
    assert reason(lambda: house.submit(owner="other/1"))[1] == "INVALID_REQUEST"
    assert house.submit(owner="gw/2", output=2) == 2
    house.desk.settle("gw/1", 1, Verdict(1, FinishReason.CANCELLED, (0,)), house.now)
    while house.step():
        pass
    assert len([e for e in house.effects("gw/2") if isinstance(e, TokenCommitted)]) == 2
    record = house.desk.records.find(1, "acme")
    assert (record.verdict, list(record.choices[0].token_ids)) == (None, [7, 7])
    assert house.pass_time(9, alive=["gw/2"])[1] == []


def test_only_streams_of_the_owning_gateway_speak_for_a_request(house):
    house.submit()
    assert house.desk.owns("gw/1", 1)
    assert house.desk.owns("gw/7", 1)
    assert not house.desk.owns("gw2/1", 1)
    assert not house.desk.owns("gw/1", 2)


def test_a_worker_lost_before_a_token_costs_only_a_delay_once(house):
    house.submit()
    assert house.desk.lanes["m@1"].plan("w1", house.now) is not None
    house.desk.detach("w1", house.now)
    house.attach(epoch=2)
    assert house.effects() == []
    assert house.desk.lanes["m@1"].plan("w1", house.now) is not None
    house.desk.detach("w1", house.now)
    ends = [effect for effect in house.effects() if isinstance(effect, ChoiceEnded)]
    assert [(end.reason, end.error_reason) for end in ends] == [(FinishReason.ERROR, "WORKER_LOST")]


def test_what_waits_for_a_worker_that_never_comes_is_failed_and_not_held_for_ever(house):
    house.submit()
    house.desk.detach("w1", house.now)
    house.pass_time(29, alive=["gw/1"])
    assert house.effects() == []
    house.pass_time(2, alive=["gw/1"])
    ended, _ = house.effects()
    assert (ended.reason, ended.error_reason) == (FinishReason.ERROR, "WORKER_LOST")


def test_the_end_of_the_scheduler_ends_nothing_that_its_owner_can_bring_to_the_next_one(house):
    house.submit(1, output=50)
    house.step()
    house.submit(2, output=50)
    house.effects()
    assert house.desk.close_orphans(house.now) == []
    assert house.effects() == []


def test_a_probe_is_seen_by_nobody_and_kept_nowhere(house):
    house.desk.lanes["m@1"].submit(Request(-1, "", (0,), 1), house.now)
    assert house.step() is not None
    assert house.desk.effects(house.now) == {}
    assert -1 not in house.desk.records


def test_a_request_is_queued_until_its_first_prefill_step_then_running_then_finished(house):
    house.submit(output=1, prompt=tuple(range(60)))
    record = house.desk.records.find(1, "acme")
    assert house.desk.state(record) is State.QUEUED
    plan = house.desk.lanes["m@1"].plan("w1", house.now)
    assert house.desk.state(record) is State.RUNNING
    house.desk.lanes["m@1"].commit("w1", StepResult(plan.epoch, plan.step, [0], [7]), house.now)
    house.effects()
    assert house.desk.state(record) is State.FINISHED
