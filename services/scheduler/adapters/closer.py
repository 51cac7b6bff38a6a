"""Closes requests for owners that vanished: `closed` into the outbox, retried until it is durable."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from kit import log
from kit.outbox import OutboxFull
from services.scheduler.adapters.lane_protos import finish_reason
from services.scheduler.core.messages import FinishReason
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from services.scheduler.core.closing import Closing
    from services.scheduler.core.desk import Desk

RETRY_S = 0.5
_log = log.get("closer")


class Appender(Protocol):
    """Where events become durable; `kit.outbox.Outbox` is one."""

    async def append(self, subject: str, msg_id: str, payload: bytes) -> None:
        """Return once the event is durable; raises `OutboxFull`."""


class Closer:
    """A queue of closings. While the outbox is full, new work is refused."""

    def __init__(self, outbox: Appender, desk: Desk) -> None:
        self._outbox = outbox
        self._desk = desk
        self._waiting: deque[Closing] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def close(self, closing: Closing) -> None:
        """Queue a closing."""
        self._waiting.append(closing)
        self._empty.clear()
        self._wake.set()

    async def flushed(self) -> None:
        """Return once every closing is durable."""
        await self._empty.wait()

    async def run(self) -> None:
        """Append closings, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = list(self._waiting)
                await asyncio.gather(*(self._append(closing) for closing in batch))
                for _ in batch:
                    self._waiting.popleft()
            self._desk.backpressure = None
            self._empty.set()

    async def _append(self, closing: Closing) -> None:
        event = closed_event(closing)
        opened = event.opened
        subject = f"usage.v1.closed.{opened.tenant_id}"
        msg_id = f"{opened.request_id}-{opened.owner_epoch}-closed"
        while True:
            try:
                await self._outbox.append(subject, msg_id, event.SerializeToString())
            except OutboxFull as error:
                if self._desk.backpressure is None:
                    _log.error("outbox is full, new work is refused")
                self._desk.backpressure = error
                await asyncio.sleep(RETRY_S)
            else:
                return


def closed_event(closing: Closing) -> events_pb2.UsageClosed:
    """Write the usage event of a request that the scheduler closes."""
    order, verdict = closing.record.order, closing.verdict
    event = events_pb2.UsageClosed(
        finish_reason=finish_reason(verdict.finish_reason),
        input_tokens=verdict.input_tokens,
        cached_tokens=verdict.cached_tokens,
        output_tokens=sum(verdict.output_tokens),
        queue_ms=verdict.queue_us / 1e3,
        ttft_ms=verdict.ttft_us / 1e3,
        total_ms=verdict.total_us / 1e3,
    )
    event.opened.request_id = order.request_id
    event.opened.owner_epoch = verdict.owner_epoch
    event.opened.tenant_id = order.tenant_id
    event.opened.model_version = order.model_version
    event.opened.tokenizer_version = order.tokenizer_version
    event.opened.runtime_revision = order.runtime_revision
    event.opened.opened_time.FromNanoseconds(int(order.opened_time * 1e9))
    if verdict.finish_reason is not FinishReason.ERROR:
        event.billable_tokens = event.input_tokens + event.output_tokens
    event.closed_time.FromNanoseconds(int(order.opened_time * 1e9) + verdict.total_us * 1000)
    return event
