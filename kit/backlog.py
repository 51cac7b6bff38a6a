"""What an outbox holds: events that are durable here and not yet published. Pure."""

from __future__ import annotations

import struct
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kit.errors import Code, ServiceError
from kit.journal import frame_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

PUBLISH_BATCH = 256
_BODY = struct.Struct("<QHH")


class OutboxFull(ServiceError):  # noqa: N818
    """No more events can be made durable here; new work must be refused."""


class Event(NamedTuple):
    """One event, since when it waits, and the id by which it is stored once."""

    at_ms: int
    subject: str
    msg_id: str
    payload: bytes

    def encode(self) -> bytes:
        """The event as a journal's record."""
        subject, msg_id = self.subject.encode(), self.msg_id.encode()
        return _BODY.pack(self.at_ms, len(subject), len(msg_id)) + subject + msg_id + self.payload

    @classmethod
    def decode(cls, body: bytes) -> Event:
        """The event of a journal's record."""
        at_ms, subject_len, id_len = _BODY.unpack_from(body)
        id_at = _BODY.size + subject_len
        payload_at = id_at + id_len
        return cls(
            at_ms, body[_BODY.size : id_at].decode(), body[id_at:payload_at].decode(), body[payload_at:]
        )


class _Pending(NamedTuple):
    end: int
    size: int
    event: Event


class Backlog:
    """Events in order, bounded by `max_bytes` of unpublished ones, appends under way included."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queue: deque[_Pending] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def oldest(self) -> Event | None:
        """The event that has waited longest."""
        return self._queue[0].event if self._queue else None

    def recover(self, records: Sequence[tuple[int, bytes]]) -> None:
        """Take in what an earlier process left."""
        for end, body in records:
            self._queue.append(_Pending(end, frame_bytes(body), Event.decode(body)))
            self.bytes += frame_bytes(body)

    def admit(self, event: Event) -> bytes:
        """Make room for an event and return its record; raises `OutboxFull`."""
        body = event.encode()
        if self.bytes + frame_bytes(body) > self._max_bytes:
            raise outbox_full("usage events wait to be published")
        self.bytes += frame_bytes(body)
        return body

    def refuse(self, body: bytes) -> None:
        """Give back the room of a record that could not be written."""
        self.bytes -= frame_bytes(body)

    def appended(self, end: int, body: bytes, event: Event) -> None:
        """Queue an event whose record is durable up to offset `end`."""
        self._queue.append(_Pending(end, frame_bytes(body), event))

    def batch(self) -> list[Event]:
        """What to publish next."""
        return [pending.event for pending in islice(self._queue, PUBLISH_BATCH)]

    def end_of(self, stored: int) -> int:
        """The offset up to which nothing is needed any more, once the first `stored` events are stored."""
        return self._queue[stored - 1].end

    def published(self, stored: int) -> None:
        """Forget the first `stored` events."""
        for _ in range(stored):
            self.bytes -= self._queue.popleft().size


def stored_prefix(results: Sequence[object]) -> int:
    """How many events from the first on were stored, where `None` says that one was."""
    return next((i for i, result in enumerate(results) if result is not None), len(results))


def outbox_full(message: str) -> OutboxFull:
    """Refuse for now: what waits may be published soon."""
    return OutboxFull(Code.UNAVAILABLE, "USAGE_BACKPRESSURE", message, retry_after_ms=1000)
