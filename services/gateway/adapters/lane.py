"""The lane client: keeps one stream to the scheduler open, and the lane book moving."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import grpc

import kit.log
from kit.backoff import Backoff, jittered
from services.gateway.adapters.lane_codec import decode, encode
from services.gateway.core.lane_book import LaneBook
from services.gateway.core.lane_messages import Welcome
from services.gateway.core.lease import LaneLostError
from tokenloom.api.scheduler.v1 import scheduler_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from services.gateway.core.effects import Effect, Meter
    from services.gateway.core.order import Order
    from services.gateway.core.owner import Owner
    from services.gateway.core.vocabulary import Vocabulary

    Call = grpc.aio.StreamStreamCall[scheduler_pb2.LaneRequest, scheduler_pb2.LaneResponse]
    OpenLane = Callable[[], Call]

_log = kit.log.get("lane")

_WELCOME_S = 5.0
_FIRST_RETRY_S, _LAST_RETRY_S, _STABLE_S = 0.05, 2.0, 2.0


class LaneClient:
    """Every request of this gateway, and the stream that they share."""

    def __init__(
        self,
        open_lane: OpenLane,
        gateway_id: str,
        *,
        resubmit_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_lane = open_lane
        self._clock = clock
        self._resubmit_s = resubmit_s
        self._book = LaneBook(gateway_id, resubmit_s=resubmit_s)
        self._scheduler_epoch = 0
        self._caught_up_at = -math.inf
        self._carry_out: Callable[[Owner, Effect], None] = _ignore
        self._wake = asyncio.Event()
        self._proven = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._welcomed_at = math.inf

    @property
    def connected(self) -> bool:
        """The scheduler has welcomed us and the stream stands."""
        return self._book.connected

    @property
    def catching_up(self) -> bool:
        """The scheduler may have yet to hear of what a lost one ran."""
        return not self.connected or self._clock() < self._caught_up_at

    def listen(self, carry_out: Callable[[Owner, Effect], None]) -> None:
        """Who does what owners ask for."""
        self._carry_out = carry_out

    def submit(self, order: Order, vocabulary: Vocabulary, meter: Meter) -> Owner:
        """Ask for admission; raises NO_CAPACITY when there is no scheduler to ask."""
        owner = self._book.submit(order, vocabulary, self._clock(), meter=meter)
        self._moved()
        return owner

    def attach(self, request_id: int, tenant_id: str, vocabulary: Vocabulary, meter: Meter) -> Owner:
        """Ask to follow a request that this gateway has no owner of; raises NO_CAPACITY."""
        owner = self._book.attach(request_id, tenant_id, vocabulary, self._clock(), meter=meter)
        self._moved()
        return owner

    def tell(self, say: Callable[..., None], *what: object) -> None:
        """Give an owner one of its inputs, and do what comes of it."""
        say(*what, self._clock())
        self._moved()

    async def run(self) -> None:
        """Keep the stream open for ever; returns only by cancellation."""
        backoff = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S, _STABLE_S)
        while True:
            self._welcomed_at = math.inf
            try:
                await self._serve()
            except (grpc.RpcError, LaneLostError, asyncio.InvalidStateError, TimeoutError) as error:
                say = _log.warning if self.connected else _log.debug
                say("lane lost", cause=_cause(error))
            now = self._clock()
            self._book.disconnect(now)
            self._moved()
            await asyncio.sleep(jittered(backoff.after(now - self._welcomed_at)))

    async def flush(self, timeout_s: float) -> bool:
        """Wait until the scheduler has proven that it heard all that was said; False when it does not."""
        if not self.connected:
            return False
        self._book.prove()
        self._moved()
        self._proven.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._proven.wait()
        except TimeoutError:
            return False
        return True

    async def _serve(self) -> None:
        call = self._open_lane()
        try:
            async with asyncio.timeout(_WELCOME_S):
                await call.write(encode(self._book.hello(self._clock())))
                first = await call.read()
            if not isinstance(first, scheduler_pb2.LaneResponse) or not first.HasField("welcome"):
                raise LaneLostError("the scheduler did not say welcome")
            welcome = Welcome(first.welcome.scheduler_epoch, first.welcome.lease_us / 1e6)
            self._welcomed_at = self._clock()
            if self._scheduler_epoch not in {0, welcome.scheduler_epoch}:
                self._caught_up_at = self._welcomed_at + self._resubmit_s
            self._scheduler_epoch = welcome.scheduler_epoch
            self._book.welcome(welcome, self._welcomed_at)
            self._moved()
            _log.info("lane open", scheduler_epoch=welcome.scheduler_epoch, lease_s=welcome.lease_s)
            await _until_one_fails(self._write(call), self._read(call), self._watch())
        finally:
            call.cancel()

    async def _write(self, call: Call) -> None:
        while True:
            message = self._book.next_message(self._clock())
            if message is not None:
                await call.write(encode(message))
                continue
            self._wake.clear()
            await self._wake.wait()

    async def _read(self, call: Call) -> None:
        while True:
            response = await call.read()
            if not isinstance(response, scheduler_pb2.LaneResponse):
                raise LaneLostError("the scheduler ended the stream")
            try:
                message = decode(response)
            except (ValueError, LookupError) as error:
                raise LaneLostError("the scheduler sent what cannot be read") from error
            if message is not None:
                self._book.hear(message, self._clock())
                self._moved()

    async def _watch(self) -> None:
        # A scheduler that hears nothing, or is not heard, raises nothing.
        lease = self._book.lease
        assert lease is not None
        while True:
            await asyncio.sleep(lease.period_s / 2)
            lease.check(self._clock())

    def _moved(self) -> None:
        """Carry out what was asked for; wake who waits for it."""
        while effects := self._book.take_effects():
            for owner, effect in effects:
                self._carry_out(owner, effect)
        if self._book.waiting:
            self._wake.set()
        if self._book.proven:
            self._proven.set()
        when = self._book.next_timer()
        if when != self._timer_at:
            self._set_timer(when)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = when
        if when < math.inf:
            delay = max(0.0, when - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer_at = math.inf
        self._book.tick(self._clock())
        self._moved()


def _ignore(owner: Owner, effect: Effect) -> None:
    pass


async def _until_one_fails(*work: Coroutine[Any, Any, None]) -> None:
    # A task group swallows the cancellation of its parent that comes while it fails.
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.cancelled():  # so the library says that the call was cancelled
                raise LaneLostError("the call was cancelled")
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cause(error: BaseException) -> str:
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
    return details or str(error) or type(error).__name__
