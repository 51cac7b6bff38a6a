"""A worker's life: joining, loading, a registry that comes and goes, draining."""

import asyncio
import threading
from pathlib import Path

import grpc
import pytest

from kit.artifacts import ArtifactError
from kit.grpc import service_error
from services.worker.engine import EngineError
from tests.integration.worker.support import ask, plan, registry_at
from tokenloom.api.worker.v1 import worker_pb2

LOADING, READY, DRAINING = (
    worker_pb2.WORKER_STATE_LOADING,
    worker_pb2.WORKER_STATE_READY,
    worker_pb2.WORKER_STATE_DRAINING,
)


async def test_it_describes_the_engine_it_loaded_from_its_assignment(ready, stub):
    described = await stub.Describe(worker_pb2.DescribeRequest())
    assert str(ready.engine.directory) == "/models/tiny one/1"
    assert (described.model_version, described.page_count, described.slot_count) == ("tiny@1", 64, 8)
    assert [described.incarnation] == ready.registry.joined


async def test_it_listens_while_loading_and_takes_no_plans(worker, stub, tmp_path):
    gate = threading.Event()
    worker.prepare = lambda engine: gate.wait(10)
    async with registry_at(worker.registry_target, worker.registry):
        worker.start(tmp_path)
        described = await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
        assert described.state == LOADING
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Run(iter([plan(1, 1)])).read()
        assert service_error(error.value).reason == "NO_CAPACITY"
        gate.set()
        await worker.state(stub, READY)
        await worker.registry.reported(READY)


async def test_it_waits_for_a_registry_that_comes_later(worker, stub, tmp_path):
    worker.start(tmp_path)
    await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
    await asyncio.sleep(0.3)
    async with registry_at(worker.registry_target, worker.registry):
        await worker.state(stub, READY)


async def test_the_loss_of_the_registry_restarts_nothing(ready, stub):
    call = stub.Run()
    await ask(call, plan(1, 1))
    ready.registry.forget = True
    await ready.registry.joined_again.wait()
    await ask(call, plan(1, 2))
    assert len(set(ready.registry.joined)) == 1
    assert ready.engine.resets == 1
    call.cancel()


async def test_another_assignment_ends_the_process_so_that_it_can_load_it(ready):
    ready.registry.assigned = "tiny@2"
    ready.registry.forget = True
    await asyncio.wait_for(ready.done, 5)


async def test_drain_is_announced_first_and_waits_for_the_stream(ready, stub):
    call = stub.Run()
    await ask(call, plan(1, 1))
    ready.stop.set()
    await ready.registry.reported(DRAINING)
    await ask(call, plan(1, 2))
    assert not ready.done.done()
    await call.done_writing()
    await asyncio.wait_for(ready.done, 10)


async def test_drain_ends_with_its_grace(worker, stub, tmp_path):
    async with registry_at(worker.registry_target, worker.registry):
        worker.start(tmp_path, drain_grace_s=0.5)
        await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
        await worker.state(stub, READY)
        call = stub.Run()
        await ask(call, plan(1, 1))
        worker.stop.set()
        await asyncio.wait_for(worker.done, 10)


@pytest.mark.parametrize(
    "refusal", [ArtifactError(Path("model.safetensors"), "differs"), EngineError("10 bytes hold no page")]
)
async def test_an_artifact_that_does_not_load_ends_the_process_with_one_line(
    worker, stub, tmp_path, capfd, refusal
):
    def refuse(engine):
        raise refusal

    worker.prepare = refuse
    async with registry_at(worker.registry_target, worker.registry):
        worker.start(tmp_path)
        await asyncio.wait_for(worker.done, 5)
    logged = "".join(capfd.readouterr())
    assert str(refusal) in logged
    assert "Traceback" not in logged


async def test_a_worker_stopped_before_it_joins_leaves_no_task_behind(worker, stub, tmp_path):
    before = asyncio.all_tasks()
    worker.start(tmp_path)
    await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
    serving, worker.done = worker.done, None
    serving.cancel()
    await asyncio.wait({serving}, timeout=5)
    left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before}
    assert "RegistryLink.join" not in left
