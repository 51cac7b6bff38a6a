"""The scheduler's own end, gateways that vanish, and what is billed then."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit import lifecycle
from kit.grpc import channel, service_error
from tests.integration.scheduler.support import FINISH, until
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2


async def closed_events(house, count, within_s=8.0):
    events = []

    def note(message):
        events.append(events_pb2.UsageClosed.FromString(message.data))

    following = asyncio.create_task(house.bus.last_per_subject("USAGE", "usage.v1.closed.*", note))
    try:
        await until(lambda: asyncio.sleep(0, events), lambda known: len(known) >= count, within_s)
    finally:
        await lifecycle.end(following)
    return events


async def test_it_serves_before_nats_is_there(house):
    house.nats_url = "nats://127.0.0.1:1"
    house.start()
    gateway = await house.gateway()
    assert gateway.welcome.lease_us == 10_000_000
    async with channel(house.target) as own:
        health = await health_pb2_grpc.HealthStub(own).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_drain_lets_running_work_finish_and_refuses_new(house, eventually):
    house.start(drain_grace_s=60.0)
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    gateway = await house.gateway()
    worker.holds_at = 10
    await gateway.submit(1, output=50)
    await eventually(lambda: gateway.seen[1].tokens)
    house.stop.set()
    await asyncio.sleep(0.1)
    await gateway.submit(2)
    await eventually(lambda: gateway.seen[2].refused)
    assert gateway.seen[2].refused.reason == "DRAINING"
    worker.go_on()
    await eventually(lambda: gateway.seen[1].request_end)
    assert len(gateway.seen[1].tokens) == 50
    await gateway.settle(1, output=50)
    await asyncio.wait_for(house.done, 20)


async def test_what_outlasts_the_grace_is_left_to_its_owner_as_by_a_scheduler_that_is_lost(
    serving, eventually
):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 10
    await gateway.submit(1, output=100)
    await eventually(lambda: gateway.seen[1].tokens)
    await gateway.submit(2, output=100)
    await eventually(lambda: gateway.seen[2].accepted)
    await serving.end()
    await asyncio.wait_for(gateway.reader, 2)
    assert gateway.code is not None
    assert [gateway.seen[one].request_end for one in (1, 2)] == [None, None]


async def test_a_vanished_gateways_requests_end_with_its_lease_and_are_billed_once(house, eventually):
    house.start(lease_s=0.6)
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    gateway = await house.gateway()
    worker.holds_at = 10
    await gateway.submit(7, output=120)
    await eventually(lambda: len(gateway.seen[7].tokens) >= 5)
    await gateway.close()
    house.gateways.clear()
    await house.until_lane(lambda lane: lane.running == 0 and lane.owned_pages == 0)
    worker.go_on()
    (event,) = await closed_events(house, 1)
    assert (event.opened.request_id, event.opened.owner_epoch, event.opened.tenant_id) == (7, 2, "acme")
    assert event.finish_reason == FINISH.FINISH_REASON_CANCELLED
    assert event.output_tokens >= len(gateway.seen[7].tokens)
    assert event.billable_tokens == event.input_tokens + event.output_tokens == 3 + event.output_tokens
    assert event.ttft_ms > 0
    late = await house.gateway()
    await late.settle(7, epoch=1, output=99)
    record = await late.stub.GetGeneration(scheduler_pb2.GetGenerationRequest(request_id=7, tenant_id="acme"))
    assert (record.settled.owner_epoch, record.settled.output_tokens[0]) == (2, event.output_tokens)


async def test_heartbeats_keep_a_silent_gateways_requests(house, eventually):
    house.start(lease_s=0.6)
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    gateway = await house.gateway()
    worker.holds_at = 10
    await gateway.submit(1, output=12)
    await eventually(lambda: gateway.seen[1].tokens)
    for _ in range(6):
        await asyncio.sleep(0.2)
        await gateway.send(heartbeat=scheduler_pb2.Heartbeat())
    worker.go_on()
    await eventually(lambda: gateway.seen[1].request_end)
    assert len(gateway.seen[1].tokens) == 12


async def test_a_gateway_that_comes_back_submits_again_what_had_no_token(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.open.clear()
    await gateway.submit(1, output=5)
    await eventually(lambda: gateway.seen[1].accepted)
    again = await serving.gateway()
    await asyncio.wait_for(gateway.reader, 2)
    await again.submit(1, output=5)
    await eventually(lambda: again.seen[1].accepted)
    assert again.seen[1].accepted.owner_epoch == 2
    worker.open.set()
    await eventually(lambda: again.seen[1].request_end)
    assert again.seen[1].tokens == [4, 5, 6, 7, 8]


async def test_an_expired_result_says_so(house, eventually):
    house.start(retention_s=0.2)
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    gateway = await house.gateway()
    await gateway.submit(1, output=2)
    await eventually(lambda: gateway.seen[1].request_end)
    await gateway.settle(1, output=2)
    request = scheduler_pb2.GetGenerationRequest(request_id=1, tenant_id="acme")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await until(lambda: gateway.stub.GetGeneration(request), lambda _: False)
    assert service_error(error.value).reason == "RESULT_EXPIRED"


async def test_step_time_is_told_apart_by_part(serving, eventually):
    (gateway,) = serving.gateways
    await gateway.submit(1, output=5)
    await eventually(lambda: gateway.seen[1].request_end)
    for part in ("plan", "wire", "queue", "forward", "sample", "commit"):
        labels = {"model_version": "tiny@1", "part": part}
        count = serving.metrics.get_sample_value("tokenloom_scheduler_step_seconds_count", labels)
        assert count >= 5, part
