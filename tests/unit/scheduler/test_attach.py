"""Attach, detach and hand-over at the desk: every stream hears a request whole, once and in order."""

import pytest

from kit.errors import Code
from services.scheduler.adapters import lane_protos
from services.scheduler.core import desk
from services.scheduler.core.messages import (
    ChoiceEnded,
    FinishReason,
    Logprobs,
    Output,
    Request,
    RequestEnded,
    State,
    TokenCommitted,
)
from services.scheduler.core.notices import Attached, Granted, Settled
from services.scheduler.core.records import Order, Records, Verdict
from tests.unit.scheduler.test_desk import House, reason
from tokenloom.api.scheduler.v1 import scheduler_pb2


@pytest.fixture
def house():
    house = House()
    house.open("b/1")
    house.open("c/1")
    return house


def attach(house, stream="b/1", request_id=1, tenant="acme", **options):
    house.desk.attach_stream(stream, request_id, tenant, house.now, **options)


def tokens(notices):
    return [notice.index for notice in notices if isinstance(notice, TokenCommitted)]


def of(notices, kind):
    return [notice for notice in notices if isinstance(notice, kind)]


def test_a_follower_gets_the_record_and_then_every_further_step_once(house):
    house.submit(output=6)
    house.step()
    house.effects()
    house.step()  # committed, and told to nobody yet
    attach(house)
    house.step()
    out = house.desk.effects(house.now)
    first, *later = out["b/1"]
    assert isinstance(first, Attached)
    assert (first.owner_epoch, first.state) == (0, State.RUNNING)
    assert len(first.record.choices[0].token_ids) == 2
    assert tokens(later) == [2]
    assert tokens(out["gw/1"]) == [1, 2]


def test_what_a_stream_was_told_at_the_attach_does_not_change_with_later_steps(house):
    house.submit(output=6)
    house.step()
    attach(house)
    while house.step():
        pass
    attached, *later = house.effects("b/1")
    assert len(attached.record.choices[0].token_ids) == 1
    assert (attached.record.end, attached.record.choices[0].finish_reason) == (None, None)
    assert tokens(later) == [1, 2, 3, 4, 5]
    assert [type(notice) for notice in later[-2:]] == [ChoiceEnded, RequestEnded]


def test_a_stream_that_attaches_again_is_told_anew_after_what_it_was_told(house):
    house.submit(output=6)
    attach(house)
    house.step()
    attach(house)
    house.step()
    notices = house.effects("b/1")
    assert [type(one) for one in notices] == [Attached, TokenCommitted, Attached, TokenCommitted]
    assert len(notices[2].record.choices[0].token_ids) == 1
    assert notices[3].index == 1


def test_another_tenant_cannot_attach_and_what_is_unknown_or_expired_says_so(house):
    house.submit()
    assert reason(lambda: attach(house, tenant="rival")) == (Code.NOT_FOUND, "NOT_FOUND")
    assert reason(lambda: attach(house, request_id=5)) == (Code.NOT_FOUND, "NOT_FOUND")
    house.desk.settle("gw/1", 1, Verdict(1, FinishReason.CANCELLED, (0,)), house.now)
    house.pass_time(601, alive=["gw/1"])
    assert reason(lambda: attach(house)) == (Code.FAILED_PRECONDITION, "RESULT_EXPIRED")
    assert house.effects("b/1") == []


def test_a_settled_request_is_told_with_its_verdict_and_not_followed(house):
    house.submit(output=3)
    while house.step():
        pass
    verdict = Verdict(1, FinishReason.STOP, (2,), 3, 1, 10, 20, 30, "", (FinishReason.STOP,))
    house.desk.settle("gw/1", 1, verdict, house.now)
    attach(house)
    (attached,) = house.effects("b/1")
    assert (attached.record.verdict, attached.owner_epoch, attached.state) == (verdict, 0, State.FINISHED)
    assert list(attached.record.choices[0].token_ids) == [7, 7]
    assert attached.record.choices[0].finish_reason is FinishReason.STOP
    assert house.desk.ownership.followed == 0


def test_an_attach_that_crosses_the_settle_hears_of_it_either_way(house):
    house.submit(output=3)
    while house.step():
        pass
    attach(house)
    verdict = Verdict(1, FinishReason.LENGTH, (3,))
    house.desk.settle("gw/1", 1, verdict, house.now)
    attach(house, "c/1")
    attached, settled = house.effects("b/1")
    assert (attached.record.verdict, settled) == (None, Settled(1, verdict))


def test_a_verdict_on_a_running_request_reaches_its_followers_after_the_end(house):
    house.submit(output=50)
    attach(house)
    house.step()
    house.desk.settle("gw/1", 1, Verdict(1, FinishReason.STOP, (1,)), house.now)
    kinds = [type(notice) for notice in house.effects("b/1")]
    assert kinds == [Attached, TokenCommitted, ChoiceEnded, RequestEnded, Settled]


def test_a_stale_or_foreign_verdict_changes_nothing(house):
    house.submit(output=50)
    attach(house)
    house.step()
    house.desk.settle("b/1", 1, Verdict(1, FinishReason.STOP, (1,)), house.now)
    house.desk.settle("gw/1", 1, Verdict(9, FinishReason.STOP, (1,)), house.now)
    assert house.desk.records.find(1, "acme").verdict is None
    assert house.step() is not None


def test_the_owner_that_comes_back_on_a_new_stream_owns_at_once_and_lacks_nothing(house):
    house.submit(output=8, lease_s=30)
    house.step()
    house.desk.disconnect("gw/1", house.now)
    house.step()
    house.desk.effects(house.now)
    house.open("gw/2")
    attach(house, "gw/2", above=1)
    house.step()
    attached, token = house.effects("gw/2")
    assert attached.owner_epoch == 2
    assert len(attached.record.choices[0].token_ids) == token.index == 2
    house.desk.settle("gw/2", 1, Verdict(1, FinishReason.STOP, (1,)), house.now)
    assert house.desk.records.find(1, "acme").verdict is None
    assert house.pass_time(20, alive=["gw/2"])[1] == []


def test_the_longest_follower_owns_when_the_owners_lease_runs_out_and_settles(house):
    house.submit(output=50)
    attach(house, "c/1")
    attach(house, "b/1")
    house.step()
    gone, closings = house.pass_time(11, alive=["b/1", "c/1"])
    assert (gone, closings) == (["gw/1"], [])
    out = house.desk.effects(house.now)
    assert out["c/1"][-1] == Granted(1, 2)
    assert of(out["b/1"], Granted) == []
    assert house.step() is not None
    assert house.desk.tally.handovers == {"m@1": 1}
    verdict = Verdict(2, FinishReason.CANCELLED, (2,))
    house.desk.settle("c/1", 1, verdict, house.now)
    assert house.effects("b/1")[-1] == Settled(1, verdict)


def test_a_follower_whose_stream_breaks_just_before_does_not_inherit(house):
    house.submit(output=50)
    attach(house, "c/1")
    attach(house, "b/1")
    house.pass_time(9, alive=["b/1", "c/1"])
    house.desk.disconnect("c/1", house.now)
    house.pass_time(2, alive=["b/1"])
    assert of(house.effects("b/1"), Granted) == [Granted(1, 2)]


def test_a_resumable_request_runs_on_without_an_owner_and_is_taken_over_whole(house):
    house.submit(output=50, lease_s=30)
    house.step()
    house.pass_time(11, alive=["b/1"])
    for _ in range(3):
        assert house.step() is not None
    assert house.desk.ownership.orphans == [1]
    attach(house, "b/1")
    house.step()
    out = house.desk.effects(house.now)
    attached, token = out["b/1"]
    assert (attached.owner_epoch, len(attached.record.choices[0].token_ids), token.index) == (2, 4, 4)
    assert house.pass_time(60, alive=["b/1"])[1] == []


def test_nobody_comes_within_the_resume_lease_and_the_request_is_closed_once(house):
    house.submit(output=50, lease_s=30)
    house.step()
    _, closings = house.pass_time(39, alive=["b/1"])
    assert closings == []
    _, (closing,) = house.pass_time(2, alive=["b/1"])
    assert closing.verdict.finish_reason is FinishReason.CANCELLED
    assert (closing.verdict.owner_epoch, closing.verdict.output_tokens) == (2, (1,))
    assert closing.verdict.choice_reasons == (FinishReason.CANCELLED,)
    assert house.step() is None
    assert house.desk.tally.takeovers == {"m@1": 1}
    assert house.pass_time(60)[1] == []


def test_an_owner_that_hands_over_ends_nothing_while_somebody_follows(house):
    house.submit(output=50)
    attach(house, "b/1")
    assert house.desk.detach_stream("gw/1", 1, house.now) is None
    assert of(house.effects("b/1"), Granted) == [Granted(1, 2)]
    closing = house.desk.detach_stream("b/1", 1, house.now)
    assert closing.verdict.owner_epoch == 3
    assert house.step() is None
    assert house.desk.detach_stream("b/1", 1, house.now) is None


def test_a_follower_that_leaves_hears_nothing_more(house):
    house.submit(output=50)
    attach(house, "b/1")
    house.step()
    house.effects("b/1")
    assert house.desk.detach_stream("b/1", 1, house.now) is None
    house.step()
    assert house.effects("b/1") == []


def test_followers_of_a_request_that_is_submitted_again_hear_of_one_end_only(house):
    house.submit(output=3)
    attach(house, "b/1")
    house.desk.disconnect("gw/1", house.now)
    house.open("gw/2")
    assert house.submit(owner="gw/2", output=3) == 2
    while house.step():
        pass
    notices = house.effects("b/1")
    assert tokens(notices) == [0, 1, 2]
    assert len(of(notices, RequestEnded)) == 1


def test_a_successor_goes_on_from_the_output_it_is_given_above_the_old_epoch(house):
    given = (Output((7, 7)), Output((7,), (), FinishReason.STOP))
    request = Request(1, "acme", (1, 2, 3), 4, n=2, resume=True, output=given)
    order = Order(1, "acme", "m@1", "tok", "rev", 3, b"", house.now, 1e9, owner_epoch=6)
    assert house.desk.submit("gw/1", request, order, house.now) == 7
    attach(house)
    while house.step():
        pass
    out = house.desk.effects(house.now)
    assert tokens(out["gw/1"]) == tokens(out["b/1"]) == [2, 3]
    assert [len(choice.token_ids) for choice in out["b/1"][0].record.choices] == [2, 1]
    record = house.desk.records.find(1, "acme")
    assert [list(choice.token_ids) for choice in record.choices] == [[7] * 4, [7]]
    assert [choice.finish_reason for choice in record.choices] == [FinishReason.LENGTH, FinishReason.STOP]
    assert record.end.input_tokens == 3


def test_all_requests_without_an_owner_are_closed_when_the_scheduler_ends(house):
    house.submit(1, output=50, lease_s=100)
    house.submit(2, output=50, owner="b/1")
    house.step()
    house.pass_time(11, alive=["b/1", "c/1"])
    (closing,) = house.desk.close_orphans(house.now)
    assert closing.record.order.request_id == 1
    assert closing.verdict.finish_reason is FinishReason.INCOMPLETE
    assert house.desk.records.find(2, "acme").verdict is None


def test_resumable_requests_wait_for_a_worker_for_a_while_and_then_end_incomplete(house):
    house.submit(output=50, resume=True)
    house.step()
    house.desk.detach("w1", house.now)
    house.effects()
    house.pass_time(29, alive=["gw/1"])
    assert house.effects() == []
    house.attach(epoch=2)
    house.step()
    house.desk.detach("w1", house.now)
    house.pass_time(31, alive=["gw/1"])
    notices = house.effects()
    assert tokens(notices) == [1]
    assert of(notices, ChoiceEnded)[0].reason is FinishReason.INCOMPLETE


def test_a_record_too_large_for_one_message_is_refused_and_ends_nobodys_stream(house, monkeypatch):
    house.submit(output=6)
    attach(house)
    monkeypatch.setattr(desk, "MOST_ATTACHED_BYTES", 100)
    assert reason(lambda: attach(house, "c/1"))[1] == "RESULT_EXPIRED"
    assert house.desk.ownership.audience(1) == ("gw/1", "b/1")


def test_the_wire_never_needs_more_bytes_than_a_record_says():
    submit = scheduler_pb2.Submit(request_id=1, prompt_token_ids=range(1000), n=1, text_spec=b"x" * 99)
    records = Records(600, 1 << 20)
    top = tuple((200_000 + at, -1.5) for at in range(20))
    output = Output((200_000,) * 500, (Logprobs(-0.5, top),) * 500)
    record = records.open(lane_protos.order(submit, "rev", 0.0, 1e9), (output,))
    (message,) = lane_protos.responses([Attached(record, State.RUNNING, 1, 5.0)])
    assert message.ByteSize() <= record.wire_bytes() <= 2 * message.ByteSize()
