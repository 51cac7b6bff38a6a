"""API keys, watched from the usage service's bucket. Nothing here ever holds or logs a key."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.gateway.app.ports import Tenant
from services.gateway.core.limits import Priority
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from kit.bus import KvView

BUCKET = "keys"
_SCHEME = "bearer "


class KeyRing:
    """Who an `Authorization` header speaks for."""

    def __init__(self, view: KvView[events_pb2.KeyRecord], *, staleness_s: float) -> None:
        self._view = view
        self._staleness_s = staleness_s

    @property
    def stale(self) -> bool:
        """Whether keys are too old to be believed: one of them may have been revoked meanwhile."""
        return self._view.staleness_s() > self._staleness_s

    def authenticate(self, authorization: str | None) -> Tenant:
        """The tenant of a `Bearer` header; raises INVALID_API_KEY, and NO_CAPACITY while keys are stale."""
        if self.stale:
            raise ServiceError(
                Code.UNAVAILABLE, "NO_CAPACITY", "API keys cannot be checked", retry_after_ms=1000
            )
        header = authorization or ""
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise _bad_key("an API key is required: `Authorization: Bearer KEY`")
        digest = hashlib.sha256(header[len(_SCHEME) :].strip().encode(errors="surrogateescape")).hexdigest()
        # A caller cannot steer the digest of a guess, so the time of the lookup tells nothing of a key.
        record = self._view.get(digest)
        if record is None or record.revoked:
            raise _bad_key("the API key is not known")
        return Tenant(record.tenant_id, Priority(record.priority or Priority.STANDARD))


def parse_key(data: bytes) -> events_pb2.KeyRecord:
    """A value of the bucket."""
    return events_pb2.KeyRecord.FromString(data)


def _bad_key(message: str) -> ServiceError:
    return ServiceError(Code.UNAUTHENTICATED, "INVALID_API_KEY", message)
