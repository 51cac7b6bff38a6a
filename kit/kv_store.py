"""A KV bucket read and written one entry at a time, every write conditional on the revision that was read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import nats.errors
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from kit.bus import BusError

if TYPE_CHECKING:
    from kit.bus import Bus

_OPERATION = "KV-Operation"
_DELETE = "DEL"
# Of a message that says that there is no value any more, by a client or by the server.
_MARKS = {_OPERATION, "Nats-Marker-Reason"}
# What the server answers when the entry is not at the expected revision.
_OTHER_REVISION = {10071, 10164}
_FAILURES = (nats.errors.Error, TimeoutError, OSError)


class RevisionError(Exception):
    """The entry has changed since it was read; nothing was written."""


class Entry(NamedTuple):
    """A key's value, None where there is none, and the revision that a write has to name."""

    value: bytes | None
    revision: int


class KvStore:
    """Entries of one bucket. Every call ends within `timeout_s`; raises `BusError` when NATS is away.

    After a `BusError` of a write nobody knows whether it was stored.
    """

    def __init__(self, bus: Bus, bucket: str, *, timeout_s: float) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._timeout_s = timeout_s

    async def read(self, key: str) -> Entry:
        """The key's entry as its leader has it now."""
        self._check_connected()
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._bus.js.get_msg(self._stream, subject=self._prefix + key)
        except NotFoundError:
            return Entry(None, 0)
        except _FAILURES as error:
            raise BusError(f"{self._stream}: {error!r}") from error
        gone = not _MARKS.isdisjoint(message.headers or {})
        return Entry(None if gone else message.data or b"", message.seq or 0)

    async def write(self, key: str, value: bytes | None, *, revision: int) -> int:
        """Store the value, or delete the key, if it is still at `revision`; returns the new revision.

        Raises `RevisionError` when it is not.
        """
        self._check_connected()
        headers = {api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(revision)}
        if value is None:
            headers[_OPERATION] = _DELETE
        try:
            async with asyncio.timeout(self._timeout_s):
                stored = await self._bus.js.publish(self._prefix + key, value or b"", headers=headers)
        except APIError as error:
            if error.err_code in _OTHER_REVISION:
                raise RevisionError(key) from None
            raise BusError(f"{self._stream}: {error!r}") from error
        except _FAILURES as error:
            raise BusError(f"{self._stream}: {error!r}") from error
        return stored.seq

    def _check_connected(self) -> None:
        if not self._bus.connected:
            raise BusError("NATS is away")
