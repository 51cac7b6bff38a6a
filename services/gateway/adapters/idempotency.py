"""What idempotency keys stand for, in a bucket that all gateways share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from kit.bus import BusError
from kit.errors import Code, ServiceError
from kit.kv_store import KvStore, RevisionError
from services.gateway.core.idempotency import Entry, Found
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from kit.bus import Bus

BUCKET = "idempotency"
# A keyed request is refused when NATS does not answer for so long.
_TIMEOUT_S = 1.0


class KeyStore:
    """Entries by name. Raises IDEMPOTENCY_UNAVAILABLE when NATS is away."""

    def __init__(self, bus: Bus) -> None:
        self._store = KvStore(bus, BUCKET, timeout_s=_TIMEOUT_S)

    async def read(self, name: str) -> Found:
        """The entry as it is now."""
        try:
            value, revision = await self._store.read(name)
        except BusError:
            raise _unavailable() from None
        return Found(None if value is None else decode(value), revision)

    async def write(self, name: str, entry: Entry | None, revision: int) -> int | None:
        """Store or delete the entry if it is at `revision`; the new revision, None when it was not."""
        try:
            return await self._store.write(name, encode(entry) if entry else None, revision=revision)
        except RevisionError:
            return None
        except BusError:
            raise _unavailable() from None


def encode(entry: Entry) -> bytes:
    """An entry as it is kept."""
    created = Timestamp()
    created.FromNanoseconds(int(entry.created * 1e9))
    record = events_pb2.IdempotencyRecord(
        request_id=entry.request_id,
        content_sha256=entry.content,
        accepted=entry.accepted,
        created_time=created,
    )
    return record.SerializeToString()


def decode(value: bytes) -> Entry:
    """An entry from what was kept; raises IDEMPOTENCY_UNAVAILABLE when that cannot be read."""
    try:
        record = events_pb2.IdempotencyRecord.FromString(value)
    except DecodeError:
        raise _unavailable() from None
    created = record.created_time.ToNanoseconds() / 1e9
    return Entry(record.request_id, record.content_sha256, record.accepted, created)


def _unavailable() -> ServiceError:
    message = "idempotency keys cannot be checked now; without a key the request would be taken"
    return ServiceError(Code.UNAVAILABLE, "IDEMPOTENCY_UNAVAILABLE", message, retry_after_ms=1000)
