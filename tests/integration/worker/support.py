"""A worker in this process: the real server and shells, over a unix socket, with a registry of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
from prometheus_client import CollectorRegistry

from kit.errors import Code, ServiceError
from kit.grpc import Server
from services.worker.bootstrap import serve
from services.worker.config import WorkerConfig
from tokenloom.api.registry.v1 import registry_pb2, registry_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from tokenloom.api.worker.v1.worker_pb2_grpc import WorkerServiceAsyncStub


class CountingEngine:
    """Every row that reaches the end of its tokens draws the number of tokens it has."""

    model_version = "tiny@1"
    runtime_revision = "counting"
    page_size, page_count, slot_count, max_step_tokens = 4, 64, 8, 64
    context_length, vocab_size, kv_bytes_per_token = 256, 1000, 96

    def __init__(self, directory) -> None:
        self.directory = directory
        self.executed: list[tuple[int, int]] = []
        self.resets = 0
        self.before_step = lambda: None

    def execute(self, plan):
        self.before_step()
        self.executed.append((plan.epoch, plan.step))
        return worker_pb2.StepResult(slot=plan.slot, token_id=[len(self.executed)] * len(plan.slot))

    def reset(self):
        self.resets += 1


class StandInRegistry(registry_pb2_grpc.RegistryServiceServicer):
    """Assigns one version and remembers what it was told."""

    def __init__(self) -> None:
        self.assigned = "tiny@1"
        self.joined: list[str] = []
        self.states: list[int] = []
        self.joined_again = asyncio.Event()
        self.forget = False

    async def JoinWorker(self, request, context):
        if self.joined:
            self.joined_again.set()
        self.joined.append(request.incarnation)
        self.forget = False
        model = registry_pb2.ModelVersion(
            model_version=self.assigned, artifact_uri="file:///models/tiny%20one/1"
        )
        return registry_pb2.JoinWorkerResponse(model=model, lease_us=300_000)

    async def RenewLease(self, request, context):
        if self.forget:
            raise ServiceError(Code.NOT_FOUND, "NOT_FOUND", "join again")
        self.states.append(request.state)
        return registry_pb2.RenewLeaseResponse()

    async def reported(self, state):
        async def told():
            return self.states[-1:] == [state]

        await eventually(told)


@contextlib.asynccontextmanager
async def registry_at(target, registry):
    server = Server(target)
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(registry, server.aio)
    await server.start(["tokenloom.api.registry.v1.RegistryService"])
    try:
        yield
    finally:
        await server.stop(0)


class RunningWorker:
    """Handles of a worker under test."""

    def __init__(self, directory) -> None:
        self.target = f"unix:{directory}/worker"
        self.registry_target = f"unix:{directory}/registry"
        self.registry = StandInRegistry()
        self.metrics = CollectorRegistry()
        self.engine: CountingEngine | None = None
        self.prepare = lambda engine: None
        self.stop = asyncio.Event()
        self.done: asyncio.Task[None] | None = None

    def load(self, directory):
        self.engine = CountingEngine(directory)
        self.prepare(self.engine)
        return self.engine

    def start(self, tmp_path: Path, **settings: Any) -> None:
        config = WorkerConfig(
            nats_url="nats://unused",
            state_dir=tmp_path,
            worker_id="w1",
            worker_listen=self.target,
            registry_target=self.registry_target,
            **settings,
        )
        self.done = asyncio.create_task(serve(config, self.stop, self.load, self.metrics))

    async def state(self, stub: WorkerServiceAsyncStub, wanted: worker_pb2.WorkerState) -> None:
        async def reached():
            return (await stub.Describe(worker_pb2.DescribeRequest())).state == wanted

        await eventually(reached)


async def eventually(condition, within_s=5.0):
    """Wait until an async condition holds."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - what is watched is another process's state
            await asyncio.sleep(0.02)


def plan(epoch, step, slots=(0,)):
    return worker_pb2.RunRequest(
        plan=worker_pb2.StepPlan(epoch=epoch, step=step, slot=slots, token_count=[1] * len(slots))
    )


async def ask(call, request):
    await call.write(request)
    response = await call.read()
    if response is grpc.aio.EOF:
        raise AssertionError(f"stream ended: {await call.code()} {await call.details()}")
    return response.result
