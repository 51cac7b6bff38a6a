"""The run stream: order, idempotency, fencing, and an engine that dies or hangs."""

import asyncio
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit.grpc import channel, service_error
from tests.integration.worker.support import ask, eventually, plan
from tokenloom.api.worker.v1 import worker_pb2


async def refusal(call, request):
    await call.write(request)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    return error.value.code(), service_error(error.value).reason


async def test_steps_run_in_order_with_their_results_in_order(ready, stub):
    call = stub.Run()
    for step in range(1, 8):
        await call.write(plan(1, step, slots=range(step)))
    await call.done_writing()
    results = [response.result async for response in call]
    assert [(r.epoch, r.step, len(r.token_id)) for r in results] == [(1, s, s) for s in range(1, 8)]
    assert all(result.queue_us >= 0 for result in results)
    assert ready.engine.resets == 1


async def test_a_repeated_step_returns_the_same_result_without_running_again(ready, stub):
    call = stub.Run()
    await ask(call, plan(1, 1))
    second = await ask(call, plan(1, 2))
    third = await ask(call, plan(1, 3))
    call.cancel()
    again = stub.Run()
    assert await ask(again, plan(1, 2)) == second
    assert await ask(again, plan(1, 3)) == third
    await ask(again, plan(1, 4))
    assert ready.engine.executed == [(1, 1), (1, 2), (1, 3), (1, 4)]
    again.cancel()


async def test_a_gap_ends_the_stream_and_leaves_the_engine_alone(ready, stub):
    call = stub.Run()
    await ask(call, plan(1, 1))
    assert await refusal(call, plan(1, 3)) == (grpc.StatusCode.FAILED_PRECONDITION, "STEP_GAP")
    assert ready.engine.executed == [(1, 1)]


@pytest.mark.parametrize(
    ("field", "columns"),
    [("slot", {"slot": [0, 1], "token_count": [1]}), ("page_slot", {"page_slot": [0], "page": []})],
)
async def test_a_plan_whose_columns_disagree_is_refused_and_kills_no_worker(ready, stub, field, columns):
    call = stub.Run()
    await ask(call, plan(1, 1))
    malformed = worker_pb2.RunRequest(plan=worker_pb2.StepPlan(epoch=1, step=2, **columns))
    await call.write(malformed)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    refused = service_error(error.value)
    assert (error.value.code(), refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    again = stub.Run()
    await ask(again, plan(1, 2))
    assert ready.engine.executed == [(1, 1), (1, 2)]
    again.cancel()


async def test_a_lower_epoch_is_fenced_and_a_higher_one_resets(ready, stub):
    older = stub.Run()
    await ask(older, plan(4, 1))
    newer = stub.Run()
    await ask(newer, plan(5, 1))
    assert await refusal(older, plan(4, 2)) == (grpc.StatusCode.FAILED_PRECONDITION, "EPOCH_FENCED")
    assert ready.engine.resets == 2
    assert (await stub.Describe(worker_pb2.DescribeRequest())).last_epoch == 5
    await ask(newer, plan(5, 2))
    newer.cancel()


async def test_health_tells_a_hung_engine_from_a_live_one(ready, stub):
    gate = threading.Event()
    ready.engine.before_step = lambda: gate.wait(10)
    async with channel(ready.target) as health_channel:
        health = health_pb2_grpc.HealthStub(health_channel)

        async def until(status):
            async def reached():
                return (await health.Check(health_pb2.HealthCheckRequest())).status == status

            await eventually(reached, within_s=8.0)

        await until(health_pb2.HealthCheckResponse.SERVING)
        call = stub.Run()
        await call.write(plan(1, 1))
        await until(health_pb2.HealthCheckResponse.NOT_SERVING)
        described = await stub.Describe(worker_pb2.DescribeRequest())
        assert described.state == worker_pb2.WORKER_STATE_UNSPECIFIED
        gate.set()
        await until(health_pb2.HealthCheckResponse.SERVING)
        call.cancel()


async def test_an_engine_that_dies_ends_its_streams_and_the_process(ready, stub):
    def die():
        raise RuntimeError("out of memory")

    ready.engine.before_step = die
    call = stub.Run()
    code, reason = await refusal(call, plan(1, 1))
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "NO_CAPACITY")
    await asyncio.wait_for(ready.done, 5)


async def test_metrics_count_steps_and_their_parts(ready, stub):
    call = stub.Run()
    await ask(call, plan(1, 1, slots=(0, 1)))
    await ask(call, plan(1, 2, slots=(0,)))
    call.cancel()
    value = ready.metrics.get_sample_value
    assert value("tokenloom_worker_steps_total") == 2
    assert value("tokenloom_worker_rows_total") == 3
    assert value("tokenloom_worker_step_seconds_count", {"part": "forward"}) == 2
    assert value("tokenloom_worker_load_seconds") >= 0
    assert value("tokenloom_worker_kv_bytes_per_token") == ready.engine.kv_bytes_per_token
    assert value("tokenloom_worker_kv_pool_bytes") == ready.engine.kv_bytes_per_token * 4 * 64
