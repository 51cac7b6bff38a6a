"""The two internal streams over unix sockets: a lane of step messages, and plans to results on a run stream.

The other end is a process of its own, `python -m bench.streams SOCKET`. What is counted is what services do:
values to messages, gRPC, and messages to values.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from prometheus_client import CollectorRegistry

from bench.figures import Figure
from bench.hollow import HollowEngine
from bench.processes import module
from kit.grpc import LANE_MESSAGE_BYTES, Server, channel
from services.gateway.adapters import lane_codec
from services.gateway.core.lane_messages import Step
from services.scheduler.adapters import lane_protos, protos
from services.scheduler.core.messages import NewSequence, Sampling, StepPlan, TokenCommitted
from services.worker.adapters.engine_thread import EngineThread
from services.worker.adapters.metrics import WorkerMetrics
from services.worker.servicer import WorkerServicer
from tokenloom.api.scheduler.v1 import scheduler_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROWS = (32, 256)
STEPS, WARM = 1_000, 50
_ROWS_KEY = "rows"


class _Lane(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Says one step after the other, of as many tokens as the caller's metadata asks for."""

    async def Lane(  # type: ignore[override]  # noqa: N802
        self,
        request_iterator: object,
        context: Any,  # noqa: ANN401
    ) -> None:
        rows = int(dict(context.invocation_metadata())[_ROWS_KEY])
        for index in range(WARM + STEPS):
            tokens = [TokenCommitted(row + 1, 0, index, 1_000 + row, None) for row in range(rows)]
            for message in lane_protos.responses(tokens):
                await context.write(message)


async def _serve(target: str) -> None:
    servicer = WorkerServicer("bench", "bench")
    servicer.thread = EngineThread(HollowEngine, WorkerMetrics(CollectorRegistry()), hang_s=60)
    servicer.thread.start()
    server = Server(target, max_message_bytes=LANE_MESSAGE_BYTES)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.aio)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(_Lane(), server.aio)  # type: ignore[abstract] # nothing else is called
    await server.start([])
    print("ready", flush=True)
    await asyncio.Event().wait()


async def lane(connection: grpc.aio.Channel, rows: int) -> list[Figure]:
    """Step messages as fast as both ends can: the best of five runs."""
    return _rates("lane stream", rows, min([await _lane_run(connection, rows) for _ in range(5)]))


async def _lane_run(connection: grpc.aio.Channel, rows: int) -> float:
    stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(connection)
    call = stub.Lane(metadata=((_ROWS_KEY, str(rows)),))
    heard = began = 0.0
    while (response := await call.read()) is not grpc.aio.EOF:
        message = lane_codec.decode(response)
        assert isinstance(message, Step)
        assert len(message.tokens) == rows
        heard += 1
        if heard == WARM:
            began = time.perf_counter()
    return (time.perf_counter() - began) / STEPS


async def run(connection: grpc.aio.Channel, rows: int, epoch: int) -> list[Figure]:
    """Plans of decoding rows, each sent when the result of the last is read."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(connection)
    call = stub.Run()
    add = [NewSequence(row, row + 1, [7, 8], 2, 0, [row], 0, Sampling()) for row in range(rows)]
    slots = list(range(rows))
    taken = []
    for step in range(1, WARM + STEPS + 1):
        began = time.perf_counter()
        first = step == 1
        plan = StepPlan(
            epoch=epoch,
            step=step,
            add=add if first else [],
            slot=slots,
            token_count=[2 if first else 1] * rows,
        )
        await call.write(protos.plan_message(plan))
        result = protos.step_result((await call.read()).result)
        assert len(result.token_id) == rows
        taken.append(time.perf_counter() - began)
    call.cancel()
    return _rates("run stream", rows, _least_mean(taken[WARM:]))


def _least_mean(taken: list[float], parts: int = 20) -> float:
    """The mean of the best of several parts: other processes disturb some of them."""
    size = len(taken) // parts
    return min(statistics.mean(taken[at : at + size]) for at in range(0, size * parts, size))


def _rates(name: str, rows: int, seconds: float) -> list[Figure]:
    return [
        Figure(f"{name}, {rows} sequences: steps a second", 1 / seconds, "1/s"),
        Figure(f"{name}, {rows} sequences: time a sequence", seconds / rows * 1e6, "us"),
    ]


@asynccontextmanager
async def _connected() -> AsyncIterator[grpc.aio.Channel]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        target = f"unix:{Path(directory) / 'peer'}"
        with module("bench.streams", [target]) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            async with channel(target, role="worker", max_message_bytes=LANE_MESSAGE_BYTES) as connection:
                yield connection


async def _measure() -> list[Figure]:
    found: list[Figure] = []
    async with _connected() as connection:
        for number, rows in enumerate(ROWS, 1):
            found += await lane(connection, rows)
            found += await run(connection, rows, number)
    return found


def figures() -> list[Figure]:
    """Measure."""
    return uvloop.run(_measure())


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
