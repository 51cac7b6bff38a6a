"""The lane client: one multiplexed stream to the scheduler, kept alive, its steps dealt out to the owners."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from typing import TYPE_CHECKING

import grpc

import kit.log
from kit.errors import Code, ServiceError
from services.gateway.adapters.lane_codec import (
    PROTO_REASONS,
    decode_reason,
    decode_refusal,
    decode_tokens,
    encode_submission,
)
from services.gateway.core.lease import LaneLostError, Lease
from services.gateway.core.outcome import FinishReason
from tokenloom.api.scheduler.v1 import scheduler_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.gateway.app.ports import LaneOwner

    Call = grpc.aio.StreamStreamCall[scheduler_pb2.LaneRequest, scheduler_pb2.LaneResponse]
    OpenLane = Callable[[], Call]

_log = kit.log.get("lane")

_WELCOME_S = 5.0
_AGAIN_S = 0.1
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.05, 2.0


class LaneClient:
    """Keeps one lane stream open and tells the owner of each request what the scheduler says."""

    def __init__(
        self,
        open_lane: OpenLane,
        gateway_id: str,
        *,
        resubmit_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_lane = open_lane
        self._gateway_id = gateway_id
        self._resubmit_s = resubmit_s
        self._clock = clock
        self._owners: dict[int, LaneOwner] = {}
        self._again_until: dict[int, float] = {}
        self._outgoing: deque[scheduler_pb2.LaneRequest] = deque()
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._give_up: asyncio.TimerHandle | None = None
        self._connected = False
        self._lease: Lease | None = None

    @property
    def connected(self) -> bool:
        """The scheduler has welcomed us and the stream stands."""
        return self._connected

    async def run(self) -> None:
        """Keep the stream open for ever; returns only by cancellation."""
        backoff = _FIRST_BACKOFF_S
        while True:
            try:
                await self._serve()
            except* (grpc.RpcError, LaneLostError, asyncio.InvalidStateError, TimeoutError) as errors:
                say = _log.warning if self._connected else _log.debug
                say("lane lost", cause=_cause(errors.exceptions[0]))
            backoff = _FIRST_BACKOFF_S if self._connected else min(backoff * 2, _LAST_BACKOFF_S)
            self._disconnected()
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all that was said has been written; False when nobody is there to hear it."""
        if not self._connected:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self._flushed.wait()
        except TimeoutError:
            return False
        return True

    def submit(self, owner: LaneOwner) -> None:
        """Ask for admission; raises NO_CAPACITY when there is no scheduler to ask."""
        if not self._connected:
            raise _no_scheduler()
        self._owners[owner.request_id] = owner
        self._send(scheduler_pb2.LaneRequest(submit=encode_submission(owner.submission())))

    def cancel(
        self,
        request_id: int,
        reason: FinishReason,
        *,
        choice: int | None = None,
        kept_tokens: int | None = None,
    ) -> None:
        """End a request, or one choice, in no plan built after this arrives."""
        message = scheduler_pb2.Cancel(
            request_id=request_id, choice=choice, kept_tokens=kept_tokens, reason=PROTO_REASONS[reason]
        )
        self._send(scheduler_pb2.LaneRequest(cancel=message))

    def settle(
        self,
        request_id: int,
        owner_epoch: int,
        reason: FinishReason,
        output_tokens: Sequence[int],
    ) -> None:
        """Report the owner's verdict, after `closed` is durable."""
        message = scheduler_pb2.Settle(
            request_id=request_id,
            owner_epoch=owner_epoch,
            finish_reason=PROTO_REASONS[reason],
            output_tokens=output_tokens,
        )
        self._send(scheduler_pb2.LaneRequest(settle=message))
        self.forget(request_id)

    def forget(self, request_id: int) -> None:
        """Tell the owner of a request nothing more."""
        self._owners.pop(request_id, None)
        self._again_until.pop(request_id, None)

    def _send(self, message: scheduler_pb2.LaneRequest) -> None:
        self._outgoing.append(message)
        self._flushed.clear()
        self._wake.set()

    async def _serve(self) -> None:
        call = self._open_lane()
        try:
            sent = self._clock()
            hello = scheduler_pb2.Hello(gateway_id=self._gateway_id)
            async with asyncio.timeout(_WELCOME_S):
                await call.write(scheduler_pb2.LaneRequest(hello=hello))
                first = await call.read()
            if not isinstance(first, scheduler_pb2.LaneResponse) or not first.HasField("welcome"):
                raise LaneLostError("the scheduler did not say welcome")
            self._lease = lease = Lease(first.welcome.lease_us / 1e6, sent)
            self._welcomed(first.welcome)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(call, lease))
                group.create_task(self._read(call, lease))
                group.create_task(self._watch(lease))
        finally:
            call.cancel()

    async def _write(self, call: Call, lease: Lease) -> None:
        while True:
            if not self._outgoing:
                self._flushed.set()
                self._wake.clear()
                try:
                    async with asyncio.timeout(lease.period_s):
                        await self._wake.wait()
                except TimeoutError:
                    self._send(scheduler_pb2.LaneRequest(heartbeat=scheduler_pb2.Heartbeat()))
            now = self._clock()
            lease.check(now)
            await call.write(self._outgoing[0])
            self._outgoing.popleft()
            lease.renew(now)

    async def _watch(self, lease: Lease) -> None:
        # A write that hangs renews nothing and raises nothing.
        while True:
            await asyncio.sleep(lease.period_s / 2)
            lease.check(self._clock())

    async def _read(self, call: Call, lease: Lease) -> None:
        while True:
            response = await call.read()
            if not isinstance(response, scheduler_pb2.LaneResponse):
                raise LaneLostError("the scheduler ended the stream")
            now = self._clock()
            lease.check(now)
            self._dispatch(response, now)

    def _dispatch(self, response: scheduler_pb2.LaneResponse, now: float) -> None:
        kind = response.WhichOneof("message")
        if kind == "step":
            self._deal(response.step, now)
        elif kind == "accepted":
            self._accepted(response.accepted)
        elif kind == "refused":
            self._refused(response.refused)

    def _refused(self, refused: scheduler_pb2.Refused) -> None:
        request_id = refused.request_id
        # A scheduler that has just started listens before its workers are attached.
        if refused.reason == "NO_CAPACITY" and self._clock() < self._again_until.get(request_id, -math.inf):
            asyncio.get_running_loop().call_later(_AGAIN_S, self._submit_again, request_id)
        elif owner := self._owners.get(request_id):
            self.forget(request_id)
            owner.refused(decode_refusal(refused))

    def _submit_again(self, request_id: int) -> None:
        if self._connected and (owner := self._owners.get(request_id)):
            self._send(scheduler_pb2.LaneRequest(submit=encode_submission(owner.submission())))

    def _accepted(self, accepted: scheduler_pb2.Accepted) -> None:
        if owner := self._owners.get(accepted.request_id):
            self._again_until.pop(accepted.request_id, None)
            owner.accepted(accepted.owner_epoch, accepted.runtime_revision)
            return
        # Given up meanwhile: nobody was told of it, so nobody pays.
        self.cancel(accepted.request_id, FinishReason.CANCELLED)
        self.settle(accepted.request_id, accepted.owner_epoch, FinishReason.CANCELLED, ())

    def _deal(self, step: scheduler_pb2.LaneStep, now: float) -> None:
        owners = self._owners
        tokens = decode_tokens(list(step.token_id), step.logprobs)
        for request_id, choice, index, token in zip(
            step.request_id, step.choice, step.index, tokens, strict=True
        ):
            if owner := owners.get(request_id):
                try:
                    owner.token(choice, index, token, now)
                except Exception as fault:  # one request's fault ends one request
                    self._give_up_on(owner, fault)
        for end in step.choice_end:
            if owner := owners.get(end.request_id):
                try:
                    owner.choice_ended(end.choice, decode_reason(end.finish_reason), end.error_reason)
                except Exception as fault:  # as above
                    self._give_up_on(owner, fault)
        for last in step.request_end:
            if owner := owners.get(last.request_id):
                owner.request_ended(last.input_tokens, last.cached_tokens, last.queue_us / 1e6)

    def _give_up_on(self, owner: LaneOwner, fault: Exception) -> None:
        _log.error("request given up", request_id=owner.request_id, fault=type(fault).__name__)
        self.cancel(owner.request_id, FinishReason.ERROR)
        self.forget(owner.request_id)
        owner.refused(ServiceError(Code.INTERNAL, "INTERNAL", "the gateway failed on this request"))

    def _welcomed(self, welcome: scheduler_pb2.Welcome) -> None:
        self._connected = True
        _log.info("lane open", scheduler_epoch=welcome.scheduler_epoch, lease_s=welcome.lease_us / 1e6)
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
        for request_id in self._owners:
            self._again_until[request_id] = self._clock() + self._resubmit_s
            self._submit_again(request_id)

    def _disconnected(self) -> None:
        if not self._connected:
            return
        self._connected = False
        kept = [m for m in self._outgoing if m.WhichOneof("message") in {"cancel", "settle"}]
        self._outgoing = deque(kept)
        # The scheduler may have ended the stream because our lease ran out there: only the clock tells.
        held = self._lease is not None and self._lease.held(self._clock())
        for owner in list(self._owners.values()):
            if not held:
                owner.disowned()
            if not owner.lost():
                self.forget(owner.request_id)
        self._give_up = asyncio.get_running_loop().call_later(self._resubmit_s, self._refuse_all)

    def _refuse_all(self) -> None:
        for owner in list(self._owners.values()):
            self.forget(owner.request_id)
            owner.refused(_no_scheduler())


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
    return details or str(error) or type(error).__name__


def _no_scheduler() -> ServiceError:
    return ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", "no scheduler is reachable", retry_after_ms=1000)
