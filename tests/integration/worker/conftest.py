"""A worker per test."""

from __future__ import annotations

import asyncio

import pytest

from kit.grpc import channel
from tests.integration.worker.support import RunningWorker, registry_at
from tokenloom.api.worker.v1 import worker_pb2, worker_pb2_grpc


@pytest.fixture
async def worker(tmp_path):
    running = RunningWorker(tmp_path)
    yield running
    running.stop.set()
    if running.done is not None:
        await asyncio.wait_for(running.done, 10)


@pytest.fixture
async def stub(worker):
    async with channel(worker.target) as worker_channel:
        yield worker_pb2_grpc.WorkerServiceStub(worker_channel)


@pytest.fixture
async def ready(worker, stub, tmp_path):
    async with registry_at(worker.registry_target, worker.registry):
        worker.start(tmp_path, drain_grace_s=60.0, step_hang_s=0.5)
        await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
        await worker.state(stub, worker_pb2.WORKER_STATE_READY)
        yield worker
