"""Routes: durable values of a KV bucket, each changed only against the revision that was read."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import nats.errors
from nats.js.errors import BadRequestError, KeyNotFoundError, KeyWrongLastSequenceError

from kit.errors import Code, ServiceError
from kit.kv import last_events
from services.registry.core.errors import RouteConflictError
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.js.kv import KeyValue

    from kit.bus import Bus
    from services.registry.adapters.catalog import Version

ROUTES_BUCKET = "routes"


class Routes:
    """The routes as last read or written here; this process is their only writer but checks nonetheless."""

    def __init__(self, bus: Bus, bucket: KeyValue) -> None:
        self._bus = bus
        self._bucket = bucket
        self._records: dict[str, events_pb2.RouteRecord] = {}
        self._revisions: dict[str, int] = {}

    @property
    def versions(self) -> dict[str, str]:
        """Each routed name's version."""
        return {name: record.model_version for name, record in self._records.items()}

    async def load(self) -> None:
        """Read every route."""
        # Not the bucket's `keys`: it can find none while they are on their way.
        for event in await last_events(self._bus, f"KV_{ROUTES_BUCKET}", f"$KV.{ROUTES_BUCKET}.>"):
            if not event.deleted:
                record = events_pb2.RouteRecord.FromString(event.data)
                self._records[record.name], self._revisions[record.name] = record, event.sequence

    async def set(self, version: Version, *, served: bool) -> None:
        """Route a version's name to it; writes nothing when that is so already."""
        record = record_of(version, served=served)
        if self._records.get(record.name) == record:
            return
        self._revisions[record.name] = await self._write(record)
        self._records[record.name] = record

    async def withdraw(self, name: str) -> None:
        """Remove a name's route."""
        async with self._refusals(name):
            await self._bucket.delete(name, last=self._revisions[name])
        self._forget(name)

    async def _write(self, record: events_pb2.RouteRecord) -> int:
        value = record.SerializeToString()
        async with self._refusals(record.name):
            if revision := self._revisions.get(record.name):
                return await self._bucket.update(record.name, value, last=revision)
            return await self._bucket.create(record.name, value)

    @asynccontextmanager
    async def _refusals(self, name: str) -> AsyncIterator[None]:
        try:
            yield
        except (KeyWrongLastSequenceError, BadRequestError) as error:
            await self._read(name)
            raise RouteConflictError(name) from error
        except nats.errors.Error as error:
            message = "NATS is away, routes cannot change now"
            raise ServiceError(Code.UNAVAILABLE, "NATS_UNAVAILABLE", message, "", 1000) from error

    async def _read(self, name: str) -> None:
        try:
            entry = await self._bucket.get(name)
        except KeyNotFoundError:
            self._forget(name)
            return
        self._records[name] = events_pb2.RouteRecord.FromString(entry.value or b"")
        self._revisions[name] = entry.revision or 0

    def _forget(self, name: str) -> None:
        self._records.pop(name, None)
        self._revisions.pop(name, None)


def record_of(version: Version, *, served: bool) -> events_pb2.RouteRecord:
    """What gateways read of a routed version."""
    manifest = version.manifest
    return events_pb2.RouteRecord(
        name=manifest.name,
        model_version=manifest.model_version,
        artifact_uri=version.uri,
        context_length=manifest.context_length,
        family=manifest.family,
        tokenizer_version=manifest.tokenizer_version,
        unserved=not served,
    )
