"""What the bus gives its readers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import log
from kit.backoff import jittered

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

RETRY_S = 0.5
# A lone event waits this long for company, so that a burst becomes few batches.
_GATHER_S = 0.02
_KV_OPERATION, _KV_MARKER = "KV-Operation", "Nats-Marker-Reason"
_log = log.get("bus")


@dataclass(frozen=True, slots=True)
class Message:
    """One stored event or KV entry; `deleted` marks a KV key that is gone."""

    subject: str
    data: bytes
    sequence: int
    at: float
    deleted: bool = False


Handler = Callable[[Message], None]
BatchHandler = Callable[[Sequence[Message]], Awaitable[None]]
Hook = Callable[[], None]


def from_nats(raw: Msg) -> Message:
    """Read a JetStream message."""
    headers = raw.headers or {}
    deleted = headers.get(_KV_OPERATION) in {"DEL", "PURGE"} or _KV_MARKER in headers
    meta = raw.metadata
    return Message(raw.subject, raw.data, meta.sequence.stream, meta.timestamp.timestamp(), deleted)


async def fetch(pull: JetStreamContext.PullSubscription, batch: int) -> list[Msg]:
    """Up to `batch` messages of a consumer; none when none came for a while."""
    try:
        messages = await pull.fetch(1, timeout=2.0)
    except TimeoutError:
        return []
    if batch > 1:
        with contextlib.suppress(TimeoutError):
            messages += await pull.fetch(batch - 1, timeout=_GATHER_S)
    return messages


async def handle(messages: list[Msg], handler: BatchHandler) -> None:
    """Give a batch to its handler and acknowledge it; when that fails, ask for it once more."""
    try:
        await handler([from_nats(m) for m in messages])
    except Exception as error:  # the events are not lost: they come again
        _log.error(
            "batch failed, will come again", size=len(messages), error=f"{type(error).__name__}: {error}"
        )
        await asyncio.sleep(jittered(RETRY_S))
        for message in messages:
            await message.nak()
        return
    for message in messages:
        await message.ack()
