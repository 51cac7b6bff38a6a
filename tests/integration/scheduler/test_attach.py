"""Attach over real streams: following, coming back, handing over and taking over."""

import asyncio

import pytest

from tests.integration.scheduler.support import FINISH, MODEL
from tests.integration.scheduler.test_life import closed_events
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.worker.v1 import worker_pb2

RESUME_US = 30_000_000


@pytest.fixture
async def short(house):
    """A scheduler whose leases run out soon, with one worker and one gateway."""
    house.start(lease_s=0.6)
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    await house.gateway()
    return house


async def beat(*gateways):
    """Renew the leases of gateways, for ever."""
    while True:
        for gateway in gateways:
            await gateway.send(heartbeat=scheduler_pb2.Heartbeat())
        await asyncio.sleep(0.1)


@pytest.fixture
async def beating():
    tasks = []

    def start(*gateways):
        tasks.append(asyncio.create_task(beat(*gateways)))

    yield start
    for task in tasks:
        task.cancel()
        await asyncio.wait({task})


async def test_many_gateways_follow_at_any_moment_and_each_has_every_token_once(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 105
    await gateway.submit(1, output=110, deadline_us=60_000_000, text_spec=b"spec")
    followers = []
    for number in range(6):
        await eventually(lambda number=number: len(gateway.seen[1].tokens) > number * 10)
        follower = await serving.gateway(f"follower{number}")
        await follower.attach(1)
        followers.append(follower)
    await eventually(lambda: all(one.seen[1].attached for one in followers))
    worker.go_on()
    await eventually(lambda: all(one.seen[1].request_end for one in (gateway, *followers)))
    for follower in followers:
        attached = follower.seen[1].attached
        assert follower.seen[1].tokens == gateway.seen[1].tokens
        assert (attached.owner_epoch, attached.runtime_revision) == (0, "played")
        assert (attached.submit.text_spec, attached.submit.model_version) == (b"spec", MODEL)
        assert list(attached.submit.prompt_token_ids) == [1, 2, 3]
        assert 0 < attached.submit.deadline_us < 60_000_000
        assert attached.age_us >= attached.first_token_us > 0
    verdict = scheduler_pb2.Settle(
        request_id=1,
        owner_epoch=1,
        finish_reason=FINISH.FINISH_REASON_STOP,
        output_tokens=[100],
        input_tokens=3,
        queue_us=5,
        ttft_us=6,
        total_us=7,
        choice_finish_reason=[FINISH.FINISH_REASON_STOP],
    )
    await gateway.send(settle=verdict)
    await eventually(lambda: all(one.seen[1].settled == verdict for one in followers))
    late = await serving.gateway("late")
    await late.attach(1)
    await eventually(lambda: late.seen[1].attached)
    record = late.seen[1].attached.record
    assert (record.settled, len(late.seen[1].tokens)) == (verdict, 100)
    assert record.state == inference_pb2.GENERATION_STATE_FINISHED


async def test_an_attach_to_what_is_not_there_or_not_yours_is_refused(serving, eventually):
    (gateway,) = serving.gateways
    other = await serving.gateway("other")
    await gateway.submit(1, output=5)
    await eventually(lambda: gateway.seen[1].request_end)
    await other.attach(1, tenant_id="rival")
    await other.attach(2)
    await eventually(lambda: other.seen[1].refused and other.seen[2].refused)
    assert [other.seen[i].refused.reason for i in (1, 2)] == ["NOT_FOUND"] * 2


async def test_a_gateway_that_comes_back_gets_its_requests_back_whole_under_a_higher_epoch(
    serving, eventually
):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 50
    await gateway.submit(1, output=100, n=2, resume_lease_us=RESUME_US)
    await eventually(lambda: gateway.seen[1].tokens)
    again = await serving.gateway()
    assert again.welcome.scheduler_epoch == gateway.welcome.scheduler_epoch
    await again.attach(1, epoch=1)
    await eventually(lambda: again.seen[1].attached)
    worker.go_on()
    await eventually(lambda: again.seen[1].request_end)
    assert again.seen[1].attached.owner_epoch == 2
    assert [len(again.seen[1].choices[choice]) for choice in range(2)] == [100, 100]
    await again.settle(1, epoch=1, output=3)
    await again.settle(1, epoch=2, output=100)
    request = scheduler_pb2.GetGenerationRequest(request_id=1, tenant_id="acme")
    assert (await again.stub.GetGeneration(request)).settled.owner_epoch in {0, 2}


async def test_the_follower_of_a_vanished_gateway_is_granted_the_request(short, beating, eventually):
    (gateway,), (worker,) = short.gateways, short.workers
    follower = await short.gateway("follower")
    beating(follower)
    worker.holds_at = 10
    await gateway.submit(1, output=100)
    await eventually(lambda: gateway.seen[1].tokens)
    await follower.attach(1)
    await eventually(lambda: follower.seen[1].attached)
    await gateway.close()
    short.gateways.remove(gateway)
    await eventually(lambda: follower.seen[1].granted)
    assert follower.seen[1].granted.owner_epoch == 2
    worker.go_on()
    await eventually(lambda: follower.seen[1].request_end)
    assert len(follower.seen[1].tokens) == 100
    value = short.metrics.get_sample_value
    named = {"model_version": MODEL}
    await eventually(lambda: value("tokenloom_scheduler_handovers_total", named) == 1)
    assert value("tokenloom_scheduler_takeovers_total", named) is None


async def test_a_request_waits_for_an_owner_and_whoever_attaches_owns_it(short, beating, eventually):
    (gateway,) = short.gateways
    await gateway.submit(1, output=60, resume_lease_us=RESUME_US)
    await eventually(lambda: gateway.seen[1].tokens)
    await gateway.close()
    short.gateways.remove(gateway)
    value = short.metrics.get_sample_value
    await eventually(lambda: value("tokenloom_scheduler_ownerless_requests") == 1)
    other = await short.gateway("other")
    beating(other)
    await other.attach(1)
    await eventually(lambda: other.seen[1].attached)
    assert other.seen[1].attached.owner_epoch == 2
    await eventually(lambda: len(other.seen[1].tokens) == 60)


async def test_detaching_hands_a_request_over_at_once(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    follower = await serving.gateway("follower")
    worker.holds_at = 50
    await gateway.submit(1, output=110)
    await eventually(lambda: gateway.seen[1].accepted)
    await follower.attach(1)
    await eventually(lambda: follower.seen[1].attached)
    await gateway.detach(1)
    await eventually(lambda: follower.seen[1].granted)
    worker.go_on()
    await eventually(lambda: follower.seen[1].request_end)
    assert len(follower.seen[1].tokens) == 110
    assert gateway.seen[1].request_end is None


async def test_an_owner_that_detaches_alone_ends_its_request_and_it_is_closed_once(house, eventually):
    house.start()
    worker = await house.worker()
    worker.holds_at = 10
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    gateway = await house.gateway()
    await gateway.submit(82, output=110)
    await eventually(lambda: gateway.seen[82].tokens)
    await gateway.detach(82)
    (event,) = await closed_events(house, 1)
    assert (event.opened.request_id, event.opened.owner_epoch) == (82, 2)
    assert event.finish_reason == FINISH.FINISH_REASON_CANCELLED
    await house.until_lane(lambda lane: lane.running == lane.owned_pages == 0)


async def test_what_waits_for_an_owner_is_closed_when_the_scheduler_drains(short, eventually):
    (gateway,), (worker,) = short.gateways, short.workers
    worker.holds_at = 10
    await gateway.submit(81, output=120, resume_lease_us=RESUME_US)
    await eventually(lambda: gateway.seen[81].tokens)
    await gateway.close()
    short.gateways.remove(gateway)
    value = short.metrics.get_sample_value
    await eventually(lambda: value("tokenloom_scheduler_ownerless_requests") == 1)
    await short.end()
    (event,) = await closed_events(short, 1)
    assert event.opened.request_id == 81
    assert (event.opened.owner_epoch, event.finish_reason) == (2, FINISH.FINISH_REASON_INCOMPLETE)
    assert event.output_tokens > 0
    worker.go_on()


async def test_a_successor_goes_on_from_the_output_that_a_gateway_brings(house, eventually):
    house.start()
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    gateway = await house.gateway()
    columns = worker_pb2.LogprobColumns(row=[0, 1], logprob=[-1, -2], top_count=[1, 0])
    columns.top_token_id.append(9)
    columns.top_logprob.append(-1.5)
    output = [
        scheduler_pb2.ChoiceRecord(token_id=[4, 5], logprobs=columns),
        scheduler_pb2.ChoiceRecord(token_id=[4], finish_reason=FINISH.FINISH_REASON_STOP),
    ]
    for choice in range(2):
        gateway.seen[1].choices[choice] = list(output[choice].token_id)
    await gateway.submit(1, output=6, n=2, resume=True, owner_epoch=4, preset=output)
    await eventually(lambda: gateway.seen[1].request_end)
    assert gateway.seen[1].accepted.owner_epoch == 5
    assert gateway.seen[1].choices == {0: [4, 5, 6, 7, 8, 9], 1: [4]}
    (added,) = [added for plan in worker.plans for added in plan.add if len(added.token_ids) > 1]
    assert (added.prompt_len, list(added.token_ids)) == (3, [1, 2, 3, 4, 5])
    other = await house.gateway("other")
    await other.attach(1)
    await eventually(lambda: other.seen[1].attached)
    assert other.seen[1].attached.record.choice[0].logprobs == columns
    broken = [scheduler_pb2.ChoiceRecord(token_id=[4], logprobs=columns)]
    await gateway.submit(2, output=6, preset=broken)
    await eventually(lambda: gateway.seen[2].refused)
    assert (gateway.seen[2].refused.reason, gateway.seen[2].refused.field) == ("INVALID_REQUEST", "output")
