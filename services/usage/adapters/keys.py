"""Tenants and keys: kept in the database, published for the gateways in the KV bucket `keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import sqlalchemy as sa

from kit import log
from services.usage.adapters.schema import api_keys, tenants
from services.usage.core.keys import STANDARD, Key, changes
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from kit.bus import Bus, KvView
    from services.usage.adapters.database import Database
    from tokenloom.api.inference.v1 import inference_pb2

BUCKET = "keys"
_log = log.get("keys")


class KeyStore:
    """The tables of tenants and keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> dict[str, Key]:
        """Every key by its digest."""
        select = sa.select(api_keys, tenants.c.priority).join(tenants)
        async with self._database.transaction() as connection:
            records = (await connection.execute(select)).mappings()
            return {r["key_sha256"]: Key(r["tenant_id"], r["priority"], r["revoked"]) for r in records}

    async def ensure(self, tenant_id: str, key_sha256: str, now_us: int) -> None:
        """Create the tenant and the key where they are missing."""
        tenant = {"tenant_id": tenant_id, "priority": STANDARD, "created_us": now_us}
        key = {"key_sha256": key_sha256, "tenant_id": tenant_id, "revoked": False, "created_us": now_us}
        async with self._database.transaction() as connection:
            for table, record in ((tenants, tenant), (api_keys, key)):
                (column,) = table.primary_key
                known = sa.select(column).where(column == record[column.name])
                if (await connection.execute(known)).first() is None:
                    await connection.execute(sa.insert(table), record)


class KeyPublisher:
    """Makes the bucket say what the database says."""

    def __init__(self, store: KeyStore, bus: Bus, view: KvView[Key]) -> None:
        self._store, self._bus, self._view = store, bus, view

    async def reconcile(self) -> int:
        """Publish what differs; returns how many entries did."""
        different = changes(await self._store.all(), dict(self._view.items()))
        for digest, key in different.items():
            await self._bus.kv_put(BUCKET, digest, encode(key) if key else None)
        if different:
            _log.info("keys published", changed=len(different))
        return len(different)


def encode(key: Key) -> bytes:
    """The bucket's value of a key."""
    priority = cast("inference_pb2.Priority", key.priority)
    return events_pb2.KeyRecord(
        tenant_id=key.tenant_id, priority=priority, revoked=key.revoked
    ).SerializeToString()


def decode(value: bytes) -> Key:
    """Read the bucket's value of a key."""
    record = events_pb2.KeyRecord.FromString(value)
    return Key(record.tenant_id, record.priority, record.revoked)
