"""SchedulerService: lane streams of gateways, records and inspection."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from typing import TYPE_CHECKING, Any

import grpc

from kit import log
from kit.errors import Code, ServiceError, invalid
from services.scheduler.adapters import lane_protos
from services.scheduler.adapters.session import Session
from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.messages import FinishReason
from services.scheduler.core.ownership import owner_name, same_gateway
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

if TYPE_CHECKING:
    from services.scheduler.adapters.step_loop import StepLoop

GATEWAY_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
Context = grpc.aio.ServicerContext[Any, Any]
_log = log.get("lane")


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Turns messages into calls on the step loop and its desk."""

    def __init__(self, steps: StepLoop, *, epoch: int, lease_s: float, session_messages: int) -> None:
        self._steps = steps
        self._desk = steps.desk
        self._epoch = epoch
        self._lease_s = lease_s
        self._session_messages = session_messages
        self._streams = itertools.count(1)

    async def Lane(  # type: ignore[override]  # noqa: N802
        self, request_iterator: object, context: Context
    ) -> None:
        """Serve one gateway's stream until either side ends it, it stops reading or its lease runs out."""
        session = self._welcome(await context.read())
        writer = asyncio.create_task(session.write_all(context.write))
        reader = asyncio.create_task(self._read(context, session))
        ended = asyncio.create_task(session.ended.wait())
        tasks: set[asyncio.Task[Any]] = {writer, reader, ended}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
        finally:
            for task in tasks:
                task.cancel()
            self._steps.disconnect(session)
            _log.info("lane closed", owner=session.owner, overflowed=session.overflowed)
        if session.overflowed:
            raise ServiceError(Code.RESOURCE_EXHAUSTED, "SLOW_READER", "the stream is not read fast enough")

    async def GetGeneration(  # noqa: N802
        self, request: scheduler_pb2.GetGenerationRequest, context: Context
    ) -> scheduler_pb2.GetGenerationResponse:
        """Return a tenant's record."""
        record = self._desk.records.find(request.request_id, request.tenant_id)
        return lane_protos.generation(record, self._desk.state(record))

    async def CancelGeneration(  # noqa: N802
        self, request: scheduler_pb2.CancelGenerationRequest, context: Context
    ) -> scheduler_pb2.CancelGenerationResponse:
        """Cancel a tenant's request; its owner hears of it as of any end."""
        record = self._desk.records.find(request.request_id, request.tenant_id)
        state = lane_protos.generation_state(self._desk.state(record))
        response = scheduler_pb2.CancelGenerationResponse(state=state)
        self._cancel(request.request_id, reason=FinishReason.CANCELLED)
        return response

    async def Inspect(  # noqa: N802
        self, request: scheduler_pb2.InspectRequest, context: Context
    ) -> scheduler_pb2.InspectResponse:
        """Check and report every lane."""
        now = self._steps.clock()
        response = scheduler_pb2.InspectResponse()
        for model_version, lane in self._desk.lanes.items():
            status = lane.status()
            age_s = now - status.last_step_at if status.last_step_at is not None else now
            response.lanes.add(
                model_version=model_version,
                workers=status.replicas,
                waiting=status.waiting,
                running=status.running,
                free_pages=status.free_pages,
                cached_pages=status.cached_pages,
                owned_pages=status.owned_pages,
                violations=lane.check_integrity(),
                last_step_age_us=int(age_s * 1e6),
            )
        return response

    def _welcome(self, first: object) -> Session:
        if not isinstance(first, scheduler_pb2.LaneRequest) or not first.HasField("hello"):
            raise invalid("hello", "must be the first message")
        gateway_id = first.hello.gateway_id
        if not GATEWAY_ID.fullmatch(gateway_id):
            raise invalid("hello.gateway_id", f"must match {GATEWAY_ID.pattern}")
        owner = owner_name(gateway_id, next(self._streams))
        session = Session(
            owner,
            self._session_messages,
            says_open=first.hello.says_open,
            says_synced=first.hello.says_synced,
        )
        for other in self._steps.sessions():
            if same_gateway(other.owner, session.owner):
                other.end()
                self._steps.disconnect(other)
        self._steps.connect(session)
        welcome = scheduler_pb2.Welcome(scheduler_epoch=self._epoch, lease_us=int(self._lease_s * 1e6))
        session.send(scheduler_pb2.LaneResponse(welcome=welcome))
        _log.info("lane open", owner=session.owner)
        return session

    async def _read(self, context: Context, session: Session) -> None:
        while isinstance(message := await context.read(), scheduler_pb2.LaneRequest):
            if session.ended.is_set():
                return
            self._desk.ownership.renew(session.owner, self._steps.clock())
            try:
                self._take(message, session)
            except ServiceError as error:
                _log.error("message ignored", owner=session.owner, reason=str(error))

    def _take(self, message: scheduler_pb2.LaneRequest, session: Session) -> None:
        match message.WhichOneof("message"):
            case "heartbeat" if message.heartbeat.sequence:
                ack = scheduler_pb2.HeartbeatAck(sequence=message.heartbeat.sequence)
                session.send(scheduler_pb2.LaneResponse(heartbeat_ack=ack), first=True)
            case "submit":
                session.send(self._submit(message.submit, session))
                self._steps.wake()
            case "cancel" if self._desk.owns(session.owner, message.cancel.request_id):
                self._cancel_owned(message.cancel)
            case "settle":
                verdict = lane_protos.verdict(message.settle)
                self._desk.settle(session.owner, message.settle.request_id, verdict, self._steps.clock())
                self._steps.wake()
            case "open":
                self._desk.open(session.owner, message.open.request_id, message.open.owner_epoch)
            case "synced":
                self._desk.relay.heard(session.owner, message.synced.number)
                self._steps.wake()
            case "attach":
                self._attach(message.attach, session)
            case "detach":
                self._steps.detach_stream(session, message.detach.request_id)

    def _submit(self, submit: scheduler_pb2.Submit, session: Session) -> scheduler_pb2.LaneResponse:
        now = self._steps.clock()
        workers = self._desk.workers_of(submit.model_version)
        revision = workers[0].runtime_revision if workers else ""
        try:
            epoch = self._desk.submit(
                session.owner,
                lane_protos.request(submit, now),
                lane_protos.order(
                    submit, revision, now, time.time(), opened=submit.opened or not session.says_open
                ),
                now,
            )
        except (AdmissionError, ServiceError) as error:
            self._steps.refused(submit.model_version, error.reason)
            return scheduler_pb2.LaneResponse(refused=_refused(submit.request_id, error))
        accepted = scheduler_pb2.Accepted(
            request_id=submit.request_id, owner_epoch=epoch, runtime_revision=revision
        )
        return scheduler_pb2.LaneResponse(accepted=accepted)

    def _attach(self, attach: scheduler_pb2.Attach, session: Session) -> None:
        """Answer in the order of what else the stream is told, so that nothing is repeated or missing."""
        try:
            self._desk.attach_stream(
                session.owner,
                attach.request_id,
                attach.tenant_id,
                self._steps.clock(),
                above=attach.owner_epoch,
            )
        except ServiceError as error:
            session.send(scheduler_pb2.LaneResponse(refused=_refused(attach.request_id, error)))
        self._steps.wake()

    def _cancel_owned(self, cancel: scheduler_pb2.Cancel) -> None:
        self._cancel(
            cancel.request_id,
            choice=cancel.choice if cancel.HasField("choice") else None,
            kept_tokens=cancel.kept_tokens if cancel.HasField("kept_tokens") else None,
            reason=lane_protos.member(FinishReason, cancel.reason or FinishReason.CANCELLED, "reason"),
        )

    def _cancel(
        self,
        request_id: int,
        *,
        choice: int | None = None,
        kept_tokens: int | None = None,
        reason: FinishReason,
    ) -> None:
        if choice is None and reason is FinishReason.CANCELLED:
            self._steps.cancelled(request_id)
        self._desk.cancel(
            request_id, self._steps.clock(), choice=choice, kept_tokens=kept_tokens, reason=reason
        )
        self._steps.wake()


def _refused(request_id: int, error: AdmissionError | ServiceError) -> scheduler_pb2.Refused:
    if isinstance(error, AdmissionError):
        retry_s = error.retry_after_s or 0.0
    else:
        retry_s = (error.retry_after_ms or 0) / 1e3
    return scheduler_pb2.Refused(
        request_id=request_id,
        reason=error.reason,
        message=error.message,
        field=error.field,
        retry_after_us=int(retry_s * 1e6),
    )
