"""WorkerService: plans from the stream to the engine thread, results back, in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from services.worker.adapters.engine_thread import first_of
from services.worker.core.errors import NotLoadedError
from tokenloom.api.worker.v1 import worker_pb2, worker_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.worker.adapters.engine_thread import EngineThread
    from services.worker.core.ports import Engine

PENDING = 4
Context = grpc.aio.ServicerContext[worker_pb2.RunRequest, worker_pb2.RunResponse]
Pending = asyncio.Queue[asyncio.Future[worker_pb2.StepResult] | Exception | None]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Describes the worker and runs its steps. `thread` and `state` are set as the worker comes up."""

    def __init__(self, worker_id: str, incarnation: str) -> None:
        self._worker_id = worker_id
        self.incarnation = incarnation
        self.thread: EngineThread | None = None
        self.state = worker_pb2.WORKER_STATE_LOADING
        self.idle = asyncio.Event()
        self.idle.set()
        self._streams = 0

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.DescribeResponse:
        """Say what is loaded and how much fits; an engine that hangs is in no state to be attached."""
        hangs = self.thread is not None and not self.thread.alive
        response = worker_pb2.DescribeResponse(
            worker_id=self._worker_id,
            incarnation=self.incarnation,
            state=worker_pb2.WORKER_STATE_UNSPECIFIED if hangs else self.state,
        )
        if self.thread is not None and self.thread.loaded.done():
            _describe(response, self.thread.loaded.result(), self.thread.last_epoch)
        return response

    async def Run(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.RunRequest], context: Context
    ) -> AsyncIterator[worker_pb2.RunResponse]:
        """Execute plans as they come; at most `PENDING` of a stream wait, then reading waits."""
        if self.thread is None:
            raise NotLoadedError("the engine is not loaded")
        pending: Pending = asyncio.Queue(PENDING)
        reader = asyncio.create_task(_read(request_iterator, self.thread, pending))
        self._opened()
        try:
            while (item := await pending.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield worker_pb2.RunResponse(result=await _first(item, self.thread.ended))
        finally:
            reader.cancel()
            self._closed()

    def _opened(self) -> None:
        self._streams += 1
        self.idle.clear()

    def _closed(self) -> None:
        self._streams -= 1
        if not self._streams:
            self.idle.set()


async def _read(
    requests: AsyncIterator[worker_pb2.RunRequest], thread: EngineThread, pending: Pending
) -> None:
    try:
        async for request in requests:
            await pending.put(thread.submit(request.plan))
        await pending.put(None)
    except Exception as error:
        await pending.put(error)


async def _first(
    result: asyncio.Future[worker_pb2.StepResult], ended: asyncio.Future[None]
) -> worker_pb2.StepResult:
    await first_of(result, ended)
    if not result.done():
        raise NotLoadedError("the engine ended")
    return result.result()


def _describe(response: worker_pb2.DescribeResponse, engine: Engine, last_epoch: int) -> None:
    response.model_version = engine.model_version
    response.runtime_revision = engine.runtime_revision
    response.last_epoch = last_epoch
    response.page_size = engine.page_size
    response.page_count = engine.page_count
    response.slot_count = engine.slot_count
    response.max_step_tokens = engine.max_step_tokens
    response.context_length = engine.context_length
    response.vocab_size = engine.vocab_size
    response.kv_bytes_per_token = engine.kv_bytes_per_token
