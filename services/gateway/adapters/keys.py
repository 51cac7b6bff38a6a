"""API keys, watched from the usage service's bucket. Nothing here ever holds or logs a key."""

from __future__ import annotations

import hashlib
import hmac
from collections import defaultdict
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.gateway.app.ports import Tenant
from services.gateway.core.limits import Priority
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from kit.bus import KvView

BUCKET = "keys"
_SCHEME = "bearer "
_PREFIX = 8  # hexadecimal digits of a digest that narrow the search, and may be learned from its time


class KeyRing:
    """Who an `Authorization` header speaks for."""

    def __init__(self, view: KvView[events_pb2.KeyRecord], *, staleness_s: float) -> None:
        self._view = view
        self._staleness_s = staleness_s
        self._by_prefix: dict[str, list[str]] = {}
        self._version = -1

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
        record = self._find(header[len(_SCHEME) :].strip())
        if record is None or record.revoked:
            raise _bad_key("the API key is not known")
        return Tenant(record.tenant_id, Priority(record.priority or Priority.STANDARD))

    def _find(self, key: str) -> events_pb2.KeyRecord | None:
        """The key's record; how long it takes says nothing of the digests beyond their prefix."""
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()
        if self._version != self._view.version:
            self._index()
        found = None
        for known in self._by_prefix.get(digest[:_PREFIX], ()):
            if hmac.compare_digest(known, digest):
                found = known
        return None if found is None else self._view.get(found)

    def _index(self) -> None:
        by_prefix = defaultdict(list)
        for digest in self._view:
            by_prefix[digest[:_PREFIX]].append(digest)
        self._by_prefix, self._version = dict(by_prefix), self._view.version


def parse_key(data: bytes) -> events_pb2.KeyRecord:
    """A value of the bucket."""
    return events_pb2.KeyRecord.FromString(data)


def _bad_key(message: str) -> ServiceError:
    return ServiceError(Code.UNAUTHENTICATED, "INVALID_API_KEY", message)
