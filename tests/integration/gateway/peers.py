"""The gateway's neighbours in their real protocols: a scheduler that follows a script, and a ledger."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError, invalid
from kit.grpc import Server
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tokenloom.api.usage.v1 import usage_pb2, usage_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Script = Callable[["Job"], Awaitable[None]]

STOP = inference_pb2.FINISH_REASON_STOP
LENGTH = inference_pb2.FINISH_REASON_LENGTH
CANCELLED = inference_pb2.FINISH_REASON_CANCELLED
EOS = 2


class Job:
    """One submitted request, and what the script can do with it."""

    def __init__(self, scheduler: ScriptedScheduler, submit: scheduler_pb2.Submit) -> None:
        self.scheduler = scheduler
        self.submit = submit
        self.cancels: list[scheduler_pb2.Cancel] = []
        self.settled: scheduler_pb2.Settle | None = None
        self.cancelled = asyncio.Event()
        self.sent = [0] * submit.n

    @property
    def id(self) -> int:
        return self.submit.request_id

    def accept(self, owner_epoch: int = 1) -> None:
        accepted = scheduler_pb2.Accepted(
            request_id=self.id, owner_epoch=owner_epoch, runtime_revision="scripted/1"
        )
        self.scheduler.send(scheduler_pb2.LaneResponse(accepted=accepted))

    def refuse(self, reason: str, message: str = "no", field: str = "", retry_after_us: int = 0) -> None:
        refused = scheduler_pb2.Refused(
            request_id=self.id, reason=reason, message=message, field=field, retry_after_us=retry_after_us
        )
        self.scheduler.send(scheduler_pb2.LaneResponse(refused=refused))

    def step(self, *tokens: int | tuple[int, int], logprobs: bool = False) -> None:
        """One step: tokens of choice 0, or (choice, token) pairs; each with two alternatives if asked."""
        step = scheduler_pb2.LaneStep()
        for row, token in enumerate(tokens):
            choice, token_id = token if isinstance(token, tuple) else (0, token)
            step.request_id.append(self.id)
            step.choice.append(choice)
            step.index.append(self.sent[choice])
            step.token_id.append(token_id)
            self.sent[choice] += 1
            if logprobs:
                step.logprobs.row.append(row)
                step.logprobs.logprob.append(-0.5)
                step.logprobs.top_count.append(2)
                step.logprobs.top_token_id.extend([token_id, 5])
                step.logprobs.top_logprob.extend([-0.5, -1.5])
        self.scheduler.send(scheduler_pb2.LaneResponse(step=step))

    def end_choice(self, reason: int, choice: int = 0, error_reason: str = "") -> None:
        end = scheduler_pb2.ChoiceEnd(
            request_id=self.id,
            choice=choice,
            finish_reason=reason,
            output_tokens=self.sent[choice],
            error_reason=error_reason,
        )
        self.scheduler.send(scheduler_pb2.LaneResponse(step=scheduler_pb2.LaneStep(choice_end=[end])))

    def end_request(self, input_tokens: int | None = None, cached_tokens: int = 0) -> None:
        end = scheduler_pb2.RequestEnd(
            request_id=self.id,
            input_tokens=len(self.submit.prompt_token_ids) if input_tokens is None else input_tokens,
            cached_tokens=cached_tokens,
            queue_us=1500,
        )
        self.scheduler.send(scheduler_pb2.LaneResponse(step=scheduler_pb2.LaneStep(request_end=[end])))

    def end(self, reason: int, *, error_reason: str = "", **billed: int) -> None:
        for choice in range(self.submit.n):
            self.end_choice(reason, choice, error_reason)
        self.end_request(**billed)

    async def until_cancelled(self) -> None:
        """Do as a scheduler does: end what its owner cancels."""
        await self.cancelled.wait()
        self.end(self.cancels[0].reason)


class ScriptedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """A scheduler on one lane stream; every submitted request runs `script`."""

    def __init__(self, lease_us: int = 3_000_000) -> None:
        self.script: Script | None = None
        self.lease_us = lease_us
        self.epoch = 1
        self.jobs: list[Job] = []
        self.hellos: list[str] = []
        self.heartbeats = 0
        self.reads_after_s = 0.0
        self.records: dict[tuple[int, str], scheduler_pb2.GetGenerationResponse] = {}
        self.remote_cancels: list[tuple[int, str]] = []
        self.hears_cancels = True
        self.lanes: list[scheduler_pb2.LaneStatus] = []
        self.target = "127.0.0.1:0"
        self.listening = True
        self._outgoing: asyncio.PriorityQueue[tuple[int, int, scheduler_pb2.LaneResponse | None]]
        self._outgoing = asyncio.PriorityQueue()
        self._sent = itertools.count()
        self._scripts: set[asyncio.Task[None]] = set()
        self._server: Server | None = None

    async def start(self) -> None:
        self._server = Server(self.target)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, self._server.aio)
        self.target = await self._server.start([])

    async def stop(self) -> None:
        self.send(None)
        for script in self._scripts:
            script.cancel()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def hang_up(self) -> None:
        """End the lane stream, as a scheduler that goes and comes back does."""
        self.epoch += 1
        self.send(None)

    def send(self, message: scheduler_pb2.LaneResponse | None, *, first: bool = False) -> None:
        self._outgoing.put_nowait((not first, next(self._sent), message))

    @property
    def job(self) -> Job:
        return self.jobs[-1]

    async def Lane(self, request_iterator, context):
        self._outgoing = outgoing = asyncio.PriorityQueue()
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while (message := (await outgoing.get())[2]) is not None:
                yield message
        finally:
            reader.cancel()

    async def GetGeneration(self, request, context):
        if record := self.records.get((request.request_id, request.tenant_id)):
            return record
        raise ServiceError(Code.NOT_FOUND, "NOT_FOUND", "no such request")

    async def CancelGeneration(self, request, context):
        if not self.hears_cancels:
            raise ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", "unreachable")
        self.remote_cancels.append((request.request_id, request.tenant_id))
        if (request.request_id, request.tenant_id) not in self.records:
            raise ServiceError(Code.NOT_FOUND, "NOT_FOUND", "no such request")
        return scheduler_pb2.CancelGenerationResponse(state=inference_pb2.GENERATION_STATE_RUNNING)

    async def Inspect(self, request, context):
        return scheduler_pb2.InspectResponse(lanes=self.lanes)

    async def _read(self, requests) -> None:
        async for message in requests:
            await asyncio.sleep(self.reads_after_s)
            match message.WhichOneof("message"):
                case "hello":
                    self.hellos.append(message.hello.gateway_id)
                    welcome = scheduler_pb2.Welcome(scheduler_epoch=self.epoch, lease_us=self.lease_us)
                    self.send(scheduler_pb2.LaneResponse(welcome=welcome))
                case "submit":
                    self._submitted(Job(self, message.submit))
                case "cancel":
                    self._cancelled(message.cancel)
                case "settle":
                    self._of(message.settle.request_id).settled = message.settle
                case "heartbeat":
                    self.heartbeats += 1
                    ack = scheduler_pb2.HeartbeatAck(sequence=message.heartbeat.sequence)
                    self.send(scheduler_pb2.LaneResponse(heartbeat_ack=ack), first=True)

    def _submitted(self, job: Job) -> None:
        self.jobs.append(job)
        if self.script is not None:
            task = asyncio.create_task(self.script(job))
            self._scripts.add(task)
            task.add_done_callback(self._scripts.discard)

    def _cancelled(self, cancel: scheduler_pb2.Cancel) -> None:
        job = self._of(cancel.request_id)
        job.cancels.append(cancel)
        if not cancel.HasField("choice"):
            job.cancelled.set()

    def _of(self, request_id: int) -> Job:
        unknown = Job(self, scheduler_pb2.Submit(request_id=request_id))
        return next((job for job in reversed(self.jobs) if job.id == request_id), unknown)


@dataclass
class Ledger(usage_pb2_grpc.UsageServiceServicer):
    """A usage service with fixed rows."""

    rows: list[usage_pb2.UsageRow] = field(default_factory=list)
    asked: list[usage_pb2.ListUsageRequest] = field(default_factory=list)
    next_page_token: str = ""

    async def ListUsage(self, request, context):
        self.asked.append(request)
        if request.page_token:
            raise invalid("page_token", "must be the next_page_token of an earlier answer")
        rows = [row for row in self.rows if row.tenant_id == request.tenant_id]
        return usage_pb2.ListUsageResponse(rows=rows, next_page_token=self.next_page_token)
