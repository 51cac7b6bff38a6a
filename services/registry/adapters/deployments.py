"""Deployment events on JetStream: what was announced last, and what is to be announced."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from kit import log
from kit.backoff import jittered
from kit.bus import BusError
from kit.kv import last_events
from services.registry.core.assignments import Availability, WorkerChanged
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kit.bus import Bus

STREAM = "DEPLOYMENT"
SUBJECTS = "deployment.v1.>"
WORKER_SUBJECT = "deployment.v1.worker"
MAX_AGE_S = 14 * 24 * 3600.0
RETRY_S = 0.5
_log = log.get("deployments")

_TO_PROTO = {
    Availability.READY: events_pb2.WORKER_AVAILABILITY_READY,
    Availability.DRAINING: events_pb2.WORKER_AVAILABILITY_DRAINING,
    Availability.GONE: events_pb2.WORKER_AVAILABILITY_GONE,
}
_FROM_PROTO = {number: availability for availability, number in _TO_PROTO.items()}


class Deployments:
    """Publishes each worker's last change, in order and once, however long NATS is away."""

    def __init__(self, bus: Bus, boot_id: str) -> None:
        self._bus = bus
        self._boot_id = boot_id
        self._sequence = 0
        # Only a worker's last change matters, so what waits is bounded by the number of workers.
        self._pending: dict[str, tuple[str, WorkerChanged]] = {}
        self._wake = asyncio.Event()
        self.published = 0

    @property
    def pending(self) -> int:
        """Changes not yet stored by JetStream."""
        return len(self._pending)

    async def last_announced(self) -> list[WorkerChanged]:
        """Every worker's last event."""
        await self._bus.ensure_stream(STREAM, [SUBJECTS], MAX_AGE_S)
        events = await last_events(self._bus, STREAM, f"{WORKER_SUBJECT}.>")
        changes = [_decode(event.data) for event in events]
        return [change for change in changes if change is not None]

    def announce(self, changes: Iterable[WorkerChanged]) -> None:
        """Publish these soon."""
        for change in changes:
            self._sequence += 1
            self._pending.pop(change.worker_id, None)
            self._pending[change.worker_id] = (f"{self._boot_id}-{self._sequence}", change)
            _log.info(
                f"worker {change.availability.value}",
                worker=change.worker_id,
                model_version=change.model_version,
                target=change.target,
            )
        self._wake.set()

    async def run(self) -> NoReturn:
        """Publish what is announced."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.flush()
            except BusError as error:
                _log.debug("event not published, retrying", error=str(error))
                self._wake.set()
                await asyncio.sleep(jittered(RETRY_S))

    async def flush(self) -> None:
        """Publish all that waits; raises `BusError` when NATS is away."""
        while self._pending:
            worker_id, waiting = next(iter(self._pending.items()))
            msg_id, change = waiting
            await self._bus.publish(f"{WORKER_SUBJECT}.{worker_id}", _encode(change), msg_id=msg_id)
            self.published += 1
            if self._pending.get(worker_id) is waiting:
                del self._pending[worker_id]


def _encode(change: WorkerChanged) -> bytes:
    return events_pb2.WorkerChanged(
        worker_id=change.worker_id,
        target=change.target,
        model_version=change.model_version,
        availability=_TO_PROTO[change.availability],
        incarnation=change.incarnation,
    ).SerializeToString()


def _decode(data: bytes) -> WorkerChanged | None:
    event = events_pb2.WorkerChanged.FromString(data)
    availability = _FROM_PROTO.get(event.availability)
    if availability is None:
        return None
    return WorkerChanged(event.worker_id, event.target, event.incarnation, event.model_version, availability)
