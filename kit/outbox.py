"""The outbox: events durable on this machine before a client hears of them, published when NATS is there."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from kit import log
from kit.backlog import Backlog, Event, OutboxFull, outbox_full, stored_prefix
from kit.backoff import Backoff, jittered
from kit.journal import Journal
from kit.lifecycle import guard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Outbox", "OutboxFull", "Publisher"]

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 2.0
_log = log.get("outbox")


class Publisher(Protocol):
    """Where `drain` publishes. `kit.bus.Bus` is one."""

    async def publish_all(self, events: Sequence[Event]) -> Sequence[BaseException | None]:
        """Store events, in order: for each `None`, or why it may not be. A repeated `msg_id` is dropped."""


class Outbox:
    """Events in the journal at `path`, or in the given one, bounded by `max_bytes` of unpublished ones."""

    def __init__(self, path: Path, *, max_bytes: int = 64 << 20, journal: Journal | None = None) -> None:
        self._journal = journal or Journal(path)
        self._backlog = Backlog(max_bytes)
        self._waiting: list[tuple[Event, bytes, asyncio.Future[None]]] = []
        self._committer: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        # One thread: the journal has one user at a time, and a busy shared pool cannot delay a commit.
        self._thread = ThreadPoolExecutor(1, "outbox")

    @property
    def pending(self) -> int:
        """Events durable here and not yet published."""
        return len(self._backlog)

    @property
    def pending_bytes(self) -> int:
        """Their size, and that of appends under way."""
        return self._backlog.bytes

    @property
    def oldest_age_s(self) -> float:
        """Seconds that the oldest unpublished event has waited; 0 without one."""
        oldest = self._backlog.oldest
        return max(0.0, time.time() - oldest.at_ms / 1000) if oldest is not None else 0.0

    def open(self) -> None:
        """Recover what an earlier process left; another live process on the same path is an error."""
        self._backlog.recover(self._journal.open())
        if self._journal.damaged_bytes:
            _log.error("damaged events lost", bytes=self._journal.damaged_bytes)
        if self._journal.discarded_bytes:
            _log.warning("torn tail discarded", bytes=self._journal.discarded_bytes)
        if self._backlog:
            _log.info("recovered", pending=self.pending)

    def close(self) -> None:
        """Release the file; appends must have returned."""
        self._thread.shutdown(wait=True)
        self._journal.close()

    async def append(self, subject: str, msg_id: str, payload: bytes) -> None:
        """Return once the event is fsynced; all appends that wait share one fsync. Raises `OutboxFull`."""
        event = Event(int(time.time() * 1000), subject, msg_id, payload)
        body = self._backlog.admit(event)
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((event, body, done))
        if self._committer is None:
            self._committer = guard(asyncio.create_task(self._commit(), name="outbox commit"))
        await done

    async def drain(self, bus: Publisher, stop: asyncio.Event) -> None:
        """Publish in order and advance the cursor, until `stop`; then what is left while NATS takes it."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._wake.set())
        backoff = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S, math.inf)
        try:
            while self._backlog or not stop.is_set():
                if not self._backlog:
                    self._wake.clear()
                    await self._wake.wait()
                elif await self._publish_batch(bus):
                    backoff.reset()
                elif stop.is_set():
                    return
                else:
                    await asyncio.wait({stopping}, timeout=jittered(backoff.after(0)))
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
                    self._backlog.refuse(body)
                    if not done.done():
                        done.set_exception(outbox_full(f"the outbox cannot be written: {error.strerror}"))
                continue
            for end, (event, body, done) in zip(ends, batch, strict=True):
                self._backlog.appended(end, body, event)
                if not done.done():
                    done.set_result(None)
            self._wake.set()
        self._committer = None

    async def _publish_batch(self, bus: Publisher) -> bool:
        batch = self._backlog.batch()
        results = await bus.publish_all(batch)
        stored = stored_prefix(results)
        if stored:
            await self._advance(self._backlog.end_of(stored))
            self._backlog.published(stored)
        if stored < len(batch):
            _log.warning("publish failed, retrying", pending=self.pending, error=str(results[stored]))
        return stored == len(batch)

    async def _advance(self, end: int) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._journal.advance, end)
        except OSError as error:
            # What is published again after a restart is recognised by its id.
            _log.error("cursor or compaction failed", error=str(error))
