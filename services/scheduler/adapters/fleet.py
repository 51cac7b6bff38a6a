"""The workers: deployment events become attachments, each with its own epoch and run stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from kit import lifecycle, log
from kit.backoff import Backoff, jittered
from kit.grpc import LANE_MESSAGE_BYTES, channel, service_error
from services.scheduler.adapters import protos
from services.scheduler.adapters.replica import Replica
from services.scheduler.core.errors import LaneError
from services.scheduler.core.messages import Worker
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.worker.v1 import worker_pb2, worker_pb2_grpc

if TYPE_CHECKING:
    from kit.tls import Identity
    from services.scheduler.adapters.epochs import EpochStore
    from services.scheduler.adapters.step_loop import StepLoop

    RunCall = grpc.aio.StreamStreamCall[worker_pb2.RunRequest, worker_pb2.RunResponse]

DESCRIBE_S = 5.0
FIRST_RETRY_S, LAST_RETRY_S, STABLE_S = 0.1, 2.0, 10.0
_log = log.get("fleet")


class _NotReadyError(Exception):
    """The worker cannot be attached now."""


class _LostError(Exception):
    """An attached worker is of no more use."""


class Fleet:
    """Keeps every available worker attached.

    The registry's events say whom to try; the run stream alone says who lives. A worker whose stream works
    stays attached whatever becomes of its lease.
    """

    def __init__(
        self, steps: StepLoop, epochs: EpochStore, *, step_timeout_s: float, tls: Identity | None = None
    ) -> None:
        self._steps = steps
        self._epochs = epochs
        self._step_timeout_s = step_timeout_s
        self._tls = tls
        self._attachments: dict[str, Attachment] = {}

    def on_change(self, change: events_pb2.WorkerChanged) -> None:
        """Act on what became of a worker; the same event twice changes nothing."""
        current = self._attachments.get(change.worker_id)
        if change.availability == events_pb2.WORKER_AVAILABILITY_READY:
            if current is None or not current.goes_on(change):
                self._replace(change, current)
        elif current is not None and current.incarnation == change.incarnation:
            if change.availability == events_pb2.WORKER_AVAILABILITY_DRAINING:
                current.drain()
            else:
                current.give_up()

    async def close(self) -> None:
        """Let go of every worker."""
        await lifecycle.end(*(attachment.task for attachment in self._attachments.values()))

    def _replace(self, change: events_pb2.WorkerChanged, current: Attachment | None) -> None:
        if current is not None:
            current.task.cancel()
        attachment = Attachment(change, self._steps, self._epochs, self._step_timeout_s, self._tls)
        after = current.task if current is not None else None
        attachment.task = lifecycle.guard(
            asyncio.create_task(attachment.run(after), name=f"worker {change.worker_id}")
        )
        self._attachments[change.worker_id] = attachment

        def forget(_: asyncio.Task[None]) -> None:
            if self._attachments.get(change.worker_id) is attachment:
                del self._attachments[change.worker_id]

        attachment.task.add_done_callback(forget)


class Attachment:
    """One worker process, attached again whenever its stream breaks."""

    task: asyncio.Task[None]

    def __init__(
        self,
        change: events_pb2.WorkerChanged,
        steps: StepLoop,
        epochs: EpochStore,
        step_timeout_s: float,
        tls: Identity | None,
    ) -> None:
        self.incarnation = change.incarnation
        self._change = change
        self._steps = steps
        self._epochs = epochs
        self._step_timeout_s = step_timeout_s
        self._tls = tls
        self._replica: Replica | None = None
        self._wanted = True
        self._draining = False

    def goes_on(self, change: events_pb2.WorkerChanged) -> bool:
        """Go on as the event asks; False when that needs another attachment."""
        same = self.incarnation == change.incarnation and self._change.target == change.target
        if not same or self._draining or self.task.done():
            return False
        self._wanted = True
        self._suspect(False)
        return True

    def drain(self) -> None:
        """Finish what runs there, take nothing new, and do not attach again."""
        self._wanted, self._draining = False, True
        if self._replica is not None:
            self._steps.drain(self._replica)

    def give_up(self) -> None:
        """Do not attach again; a stream that still works goes on, and has to show soon that it does."""
        self._wanted = False
        self._suspect(True)

    def _suspect(self, suspected: bool) -> None:
        if self._replica is not None:
            self._replica.suspected = suspected

    async def run(self, after: asyncio.Task[None] | None) -> None:
        """Attach, and attach again with backoff, as long as the worker is wanted."""
        if after is not None:
            await asyncio.wait({after})
        backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S, STABLE_S)
        clock = self._steps.clock
        while self._wanted:
            started = clock()
            try:
                await self._attach()
            except (_NotReadyError, _LostError, LaneError, grpc.aio.AioRpcError) as error:
                _log.warning("worker not attached", worker=self._change.worker_id, reason=_reason(error))
            await asyncio.sleep(jittered(backoff.after(clock() - started)))

    async def _attach(self) -> None:
        async with channel(
            self._change.target, role="worker", tls=self._tls, max_message_bytes=LANE_MESSAGE_BYTES
        ) as worker_channel:
            stub: Any = worker_pb2_grpc.WorkerServiceStub(worker_channel)
            described = await stub.Describe(worker_pb2.DescribeRequest(), timeout=DESCRIBE_S)
            replica = Replica(await self._check(described), self._step_timeout_s)
            call = stub.Run(replica.plans())
            self._replica = replica
            self._steps.attach(replica)
            if self._draining:
                self._steps.drain(replica)
            _log.info("attached", worker=replica.replica_id, epoch=replica.worker.epoch)
            try:
                await self._stream(call, replica)
            finally:
                self._replica = None
                self._steps.detach(replica)
                call.cancel()
                _log.info("detached", worker=replica.replica_id)

    async def _check(self, described: worker_pb2.DescribeResponse) -> Worker:
        if described.state != worker_pb2.WORKER_STATE_READY:
            raise _NotReadyError("it is not ready")
        if described.model_version != self._change.model_version:
            raise _NotReadyError(f"it holds {described.model_version}, not {self._change.model_version}")
        # A restarted process may be reached before the event that announces it.
        self.incarnation = described.incarnation
        return Worker(
            replica_id=self._change.worker_id,
            model_version=described.model_version,
            runtime_revision=described.runtime_revision,
            capacity=protos.capacity(described),
            epoch=await self._epochs.take(described.last_epoch),
        )

    async def _stream(self, call: RunCall, replica: Replica) -> None:
        reading = asyncio.create_task(self._read(call, replica))
        losing = asyncio.create_task(replica.lost.wait())
        try:
            await asyncio.wait({reading, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise _LostError("a step timed out")
            reading.result()
        finally:
            reading.cancel()
            losing.cancel()

    async def _read(self, call: RunCall, replica: Replica) -> None:
        async for response in call:
            self._steps.commit(replica, response.result)
        if not replica.draining:
            raise _LostError("it ended the stream")


def _reason(error: Exception) -> str:
    return service_error(error).message if isinstance(error, grpc.aio.AioRpcError) else str(error)
