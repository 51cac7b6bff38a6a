"""The outbox: events durable on this machine before a client hears of them, published when NATS is there."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kit import log
from kit.errors import Code, ServiceError
from kit.journal import Journal, frame_bytes
from kit.lifecycle import guard

if TYPE_CHECKING:
    from pathlib import Path

PUBLISH_BATCH = 256
_BODY = struct.Struct("<QHH")
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 2.0
_log = log.get("outbox")


class OutboxFull(ServiceError):  # noqa: N818
    """No more events can be made durable here; new work must be refused."""


class Publisher(Protocol):
    """Where `drain` publishes; returns once the event is stored. `kit.bus.Bus` is one."""

    async def publish(self, subject: str, payload: bytes, *, msg_id: str) -> None:
        """Store one event; a repeated `msg_id` is dropped."""


class _Event(NamedTuple):
    at_ms: int
    subject: str
    msg_id: str
    payload: bytes

    def encode(self) -> bytes:
        subject, msg_id = self.subject.encode(), self.msg_id.encode()
        return _BODY.pack(self.at_ms, len(subject), len(msg_id)) + subject + msg_id + self.payload

    @classmethod
    def decode(cls, body: bytes) -> _Event:
        at_ms, subject_len, id_len = _BODY.unpack_from(body)
        id_at = _BODY.size + subject_len
        payload_at = id_at + id_len
        return cls(
            at_ms, body[_BODY.size : id_at].decode(), body[id_at:payload_at].decode(), body[payload_at:]
        )


class _Pending(NamedTuple):
    end: int
    size: int
    event: _Event


class Outbox:
    """An append-only file of events at `path`, bounded by `max_bytes` of unpublished ones."""

    def __init__(self, path: Path, *, max_bytes: int = 64 << 20) -> None:
        self._journal = Journal(path)
        self._max_bytes = max_bytes
        self._bytes = 0
        self._queue: deque[_Pending] = deque()
        self._waiting: list[tuple[_Event, bytes, asyncio.Future[None]]] = []
        self._committer: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        # One thread: the journal has one user at a time, and a busy shared pool cannot delay a commit.
        self._thread = ThreadPoolExecutor(1, "outbox")

    @property
    def pending(self) -> int:
        """Events durable here and not yet published."""
        return len(self._queue)

    @property
    def pending_bytes(self) -> int:
        """Their size, and that of appends under way."""
        return self._bytes

    @property
    def oldest_age_s(self) -> float:
        """Seconds that the oldest unpublished event has waited; 0 without one."""
        return max(0.0, time.time() - self._queue[0].event.at_ms / 1000) if self._queue else 0.0

    def open(self) -> None:
        """Recover what an earlier process left; another live process on the same path is an error."""
        for end, body in self._journal.open():
            self._enqueue(end, body, _Event.decode(body))
            self._bytes += frame_bytes(body)
        if self._journal.discarded_bytes:
            _log.warning("torn tail discarded", bytes=self._journal.discarded_bytes)
        if self._queue:
            _log.info("recovered", pending=self.pending)

    def close(self) -> None:
        """Release the file; appends must have returned."""
        self._thread.shutdown(wait=True)
        self._journal.close()

    async def append(self, subject: str, msg_id: str, payload: bytes) -> None:
        """Return once the event is fsynced; all appends that wait share one fsync. Raises `OutboxFull`."""
        event = _Event(int(time.time() * 1000), subject, msg_id, payload)
        body = event.encode()
        if self._bytes + frame_bytes(body) > self._max_bytes:
            raise _full("usage events wait to be published")
        self._bytes += frame_bytes(body)
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((event, body, done))
        if self._committer is None:
            self._committer = guard(asyncio.create_task(self._commit(), name="outbox commit"))
        await done

    async def drain(self, bus: Publisher, stop: asyncio.Event) -> None:
        """Publish in order and advance the cursor, until `stop`; then what is left while NATS takes it."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._wake.set())
        retry_s = _FIRST_RETRY_S
        try:
            while self._queue or not stop.is_set():
                if not self._queue:
                    self._wake.clear()
                    await self._wake.wait()
                elif await self._publish_batch(bus):
                    retry_s = _FIRST_RETRY_S
                elif stop.is_set():
                    return
                else:
                    await asyncio.wait({stopping}, timeout=retry_s)
                    retry_s = min(2 * retry_s, _LAST_RETRY_S)
        finally:
            stopping.cancel()

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                bodies = [body for _, body, _ in batch]
                ends = await loop.run_in_executor(self._thread, self._journal.append, bodies)
            except OSError as error:
                _log.error("append failed", error=str(error))
                for _, body, done in batch:
                    self._bytes -= frame_bytes(body)
                    if not done.done():
                        done.set_exception(_full(f"the outbox cannot be written: {error.strerror}"))
                continue
            for end, (event, body, done) in zip(ends, batch, strict=True):
                self._enqueue(end, body, event)
                if not done.done():
                    done.set_result(None)
            self._wake.set()
        self._committer = None

    def _enqueue(self, end: int, body: bytes, event: _Event) -> None:
        self._queue.append(_Pending(end, frame_bytes(body), event))

    async def _publish_batch(self, bus: Publisher) -> bool:
        batch = list(islice(self._queue, PUBLISH_BATCH))
        results = await asyncio.gather(
            *(bus.publish(e.subject, e.payload, msg_id=e.msg_id) for _, _, e in batch), return_exceptions=True
        )
        stored = next((i for i, result in enumerate(results) if result is not None), len(batch))
        if stored:
            await self._advance(batch[stored - 1].end)
            for _ in range(stored):
                self._bytes -= self._queue.popleft().size
        if stored < len(batch):
            _log.warning("publish failed, retrying", pending=self.pending, error=str(results[stored]))
        return stored == len(batch)

    async def _advance(self, end: int) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._journal.advance, end)
        except OSError as error:
            # What is published again after a restart is recognised by its id.
            _log.error("cursor or compaction failed", error=str(error))


def _full(message: str) -> OutboxFull:
    return OutboxFull(Code.UNAVAILABLE, "USAGE_BACKPRESSURE", message, retry_after_ms=1000)
