"""The lane stream end to end: admission, tokens, cancel, settle, slow and broken gateways."""

import asyncio

import grpc
import pytest

from tests.integration.scheduler.support import FINISH, until
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2


async def test_tokens_stream_to_the_gateway_in_order_with_one_end(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    for request_id in range(1, 9):
        await gateway.submit(request_id, prompt=range(1, 2 + request_id * 5), output=6)
    await eventually(lambda: all(gateway.seen[i].request_end for i in range(1, 9)))
    for request_id in range(1, 9):
        seen, prompt = gateway.seen[request_id], 1 + request_id * 5
        assert seen.accepted.owner_epoch == 1
        assert seen.accepted.runtime_revision == "played"
        assert seen.tokens == list(range(prompt + 1, prompt + 7))
        assert seen.choice_end.finish_reason == FINISH.FINISH_REASON_LENGTH
        assert (seen.choice_end.output_tokens, seen.request_end.input_tokens) == (6, prompt)
    assert gateway.steps < len(worker.plans) + 20
    lane = await serving.lane()
    assert (lane.owned_pages, lane.running, list(lane.violations)) == (0, 0, [])


async def test_a_stop_token_ends_as_stop_and_counts(serving, eventually):
    (gateway,) = serving.gateways
    await gateway.submit(1, prompt=(1, 2), output=50, stop_token_ids=[5])
    await eventually(lambda: gateway.seen[1].request_end)
    assert gateway.seen[1].tokens == [3, 4, 5]
    assert gateway.seen[1].choice_end.finish_reason == FINISH.FINISH_REASON_STOP


async def test_no_plan_built_after_a_cancel_contains_the_request(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.open.clear()
    for request_id in (1, 2):
        await gateway.submit(request_id, output=100)
    await eventually(lambda: gateway.seen[1].accepted and gateway.seen[2].accepted)
    worker.holds_at = planned = 10
    worker.open.set()
    await eventually(lambda: not worker.open.is_set())
    await eventually(lambda: gateway.seen[1].tokens and gateway.seen[2].tokens)
    await gateway.send(cancel=scheduler_pb2.Cancel(request_id=1))
    await eventually(lambda: gateway.seen[1].request_end)
    worker.go_on()
    await eventually(lambda: gateway.seen[2].request_end)
    assert gateway.seen[1].choice_end.finish_reason == FINISH.FINISH_REASON_CANCELLED
    assert gateway.seen[1].choice_end.output_tokens == len(gateway.seen[1].tokens)
    assert len(gateway.seen[2].tokens) == 100
    assert all(len(plan.slot) == 1 for plan in worker.plans[planned:])
    lane = await serving.lane()
    assert (lane.owned_pages, list(lane.violations)) == (0, [])
    count = serving.metrics.get_sample_value(
        "tokenloom_scheduler_cancel_to_free_seconds_count", {"model_version": "tiny@1"}
    )
    assert count == 1


async def test_another_gateways_cancel_or_settle_does_nothing(serving, eventually):
    (gateway,) = serving.gateways
    other = await serving.gateway("gw-other")
    await gateway.submit(1, output=60)
    await eventually(lambda: gateway.seen[1].tokens)
    await other.send(cancel=scheduler_pb2.Cancel(request_id=1))
    await other.settle(1)
    await eventually(lambda: gateway.seen[1].request_end)
    assert len(gateway.seen[1].tokens) == 60


async def test_a_stop_string_ends_one_choice_with_what_the_owner_kept(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 10
    await gateway.submit(1, output=100)
    await eventually(lambda: len(gateway.seen[1].tokens) >= 5)
    cancel = scheduler_pb2.Cancel(request_id=1, choice=0, kept_tokens=3, reason=FINISH.FINISH_REASON_STOP)
    await gateway.send(cancel=cancel)
    await eventually(lambda: gateway.seen[1].request_end)
    end = gateway.seen[1].choice_end
    assert (end.finish_reason, end.output_tokens) == (FINISH.FINISH_REASON_STOP, 3)


async def test_refusals_name_reason_field_and_hint(house, eventually):
    house.start()
    gateway = await house.gateway()
    await gateway.submit(1)
    await eventually(lambda: gateway.seen[1].refused)
    assert gateway.seen[1].refused.reason == "NO_CAPACITY"
    assert gateway.seen[1].refused.retry_after_us > 0
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    await gateway.submit(2, prompt=range(1, 200))
    await gateway.submit(3, prompt=(5000,))
    await gateway.submit(4, priority=77)
    await gateway.submit(5, deadline_us=-1)
    await gateway.submit(6, model_version="none@1")
    await eventually(lambda: all(gateway.seen[i].refused for i in range(2, 7)))
    assert [gateway.seen[i].refused.reason for i in range(2, 7)] == [
        "CONTEXT_TOO_LONG",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "DEADLINE_EXCEEDED",
        "NO_CAPACITY",
    ]
    assert gateway.seen[4].refused.field == "priority"
    value = house.metrics.get_sample_value
    named = {"model_version": "tiny@1", "reason": "INVALID_REQUEST"}
    assert value("tokenloom_scheduler_refusals_total", named) == 2
    unnamed = {"model_version": "unknown", "reason": "NO_CAPACITY"}
    assert value("tokenloom_scheduler_refusals_total", unnamed) == 2


async def test_a_deadline_ends_a_request_that_only_waits(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.open.clear()
    await gateway.submit(1, output=100)
    await gateway.submit(2, output=100, deadline_us=200_000)
    await eventually(lambda: gateway.seen[2].request_end, timeout_s=2)
    assert gateway.seen[2].choice_end.finish_reason == FINISH.FINISH_REASON_DEADLINE
    assert gateway.seen[2].request_end.input_tokens == 0
    worker.open.set()


async def test_a_gateway_that_does_not_read_is_ended_and_slows_nobody(house, eventually):
    house.start(session_messages=8)
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    slow = await house.gateway("slow", reading=False)
    fast = await house.gateway("fast")
    for request_id in range(1, 5):
        await fast.submit(request_id, output=110)

    async def flood():
        for request_id in range(200, 3000):
            await slow.submit(request_id, model_version="x" * 20_000)

    flooding = asyncio.create_task(flood())
    await eventually(lambda: all(len(fast.seen[i].tokens) == 110 for i in range(1, 5)))
    await asyncio.wait({flooding}, timeout=1)
    await slow.read()
    assert slow.code is not grpc.StatusCode.OK
    await asyncio.wait({flooding})


async def test_the_first_message_must_be_hello(serving):
    call = serving.gateways[0].stub.Lane()
    await call.write(scheduler_pb2.LaneRequest(heartbeat=scheduler_pb2.Heartbeat()))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_record_is_read_by_its_tenant_alone(serving, eventually):
    (gateway,) = serving.gateways
    await gateway.submit(1, output=4, text_spec=b"spec")
    await eventually(lambda: gateway.seen[1].request_end)
    await gateway.settle(1, output=3)
    request = scheduler_pb2.GetGenerationRequest(request_id=1, tenant_id="acme")
    record = await until(lambda: gateway.stub.GetGeneration(request), lambda r: r.HasField("settled"))
    assert record.state == inference_pb2.GENERATION_STATE_FINISHED
    assert (list(record.choice[0].token_id), record.text_spec) == ([4, 5, 6], b"spec")
    assert (record.settled.owner_epoch, record.prompt_tokens) == (1, 3)
    for call in (gateway.stub.GetGeneration, gateway.stub.CancelGeneration):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(scheduler_pb2.CancelGenerationRequest(request_id=1, tenant_id="rival"))
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


async def test_cancel_by_tenant_ends_the_request_whoever_owns_it(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 10
    await gateway.submit(1, output=100)
    await eventually(lambda: gateway.seen[1].tokens)
    request = scheduler_pb2.CancelGenerationRequest(request_id=1, tenant_id="acme")
    response = await gateway.stub.CancelGeneration(request)
    assert response.state == inference_pb2.GENERATION_STATE_RUNNING
    await eventually(lambda: gateway.seen[1].request_end)
    assert gateway.seen[1].choice_end.finish_reason == FINISH.FINISH_REASON_CANCELLED
    worker.go_on()
