"""What the bus gives its readers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.msg import Msg

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
