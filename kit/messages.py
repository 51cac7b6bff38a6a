"""What the bus gives its readers."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

# A lone event waits this long for company, so that a burst becomes few batches.
_GATHER_S = 0.02
_KV_OPERATION, _KV_MARKER = "KV-Operation", "Nats-Marker-Reason"


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
