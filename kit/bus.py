"""NATS: JetStream events and watched KV state. All of it outlives a NATS that goes away and comes back."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar, cast
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.js import api
from nats.js.errors import BadRequestError

from kit import atomic, log
from kit.backoff import jittered
from kit.kv import KvView, create_bucket
from kit.messages import RETRY_S, BatchHandler, Handler, Hook, Message, fetch, from_nats, handle

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

    from kit.backlog import Event

__all__ = ["Bus", "BusError", "KvView", "Message"]

V = TypeVar("V")
RECONNECT_S = 0.25
ACK_WAIT_S = 10.0
PUBLISH_TIMEOUT_S = 5.0
# Not all of the client's timeouts are its own kind of error.
_FAILURES = (nats.errors.Error, TimeoutError, OSError)
_log = log.get("bus")


class BusError(Exception):
    """NATS is away, or refused; the operation may be repeated."""


class Bus:
    """One connection, made by `Bus.connect`; reconnects for ever and declares what it ensured again."""

    def __init__(self, url: str, name: str, tls: ssl.SSLContext | None = None) -> None:
        self._url, self._name, self._tls = url, name, tls
        self._nc = Client()
        self._js = self._nc.jetstream()
        self._closing = self._complained = self._lost = False
        self._streams: dict[str, api.StreamConfig] = {}
        self._buckets: dict[str, float | None] = {}
        # Rises with each connection: whoever watches starts over.
        self.generation = 0
        self.lost_at = -math.inf

    @classmethod
    async def connect(cls, url: str, name: str, tls: ssl.SSLContext | None = None) -> Self:
        """Connect, waiting for NATS as long as it takes; with `tls` nothing is said before its handshake."""
        bus = cls(url, name, tls)
        await bus._open()
        return bus

    @property
    def connected(self) -> bool:
        """Whether NATS is there now; after a loss, from the next generation on."""
        return self._nc.is_connected and not self._lost

    @property
    def js(self) -> JetStreamContext:
        """The connection's JetStream context, for what this class does not wrap."""
        return self._js

    async def close(self) -> None:
        """Leave NATS; what still waits for it, or follows it, raises `BusError`."""
        self._closing = True
        await self._nc.close()

    async def publish(self, subject: str, payload: bytes, *, msg_id: str) -> None:
        """Return once JetStream stored the event; raises `BusError`. A repeated `msg_id` is dropped."""
        if not self.connected:
            raise BusError("NATS is away")
        try:
            await self.js.publish(subject, payload, headers={api.Header.MSG_ID.value: msg_id})
        except _FAILURES as error:
            raise BusError(f"{subject}: {error!r}") from error

    async def publish_all(self, events: Sequence[Event]) -> list[BaseException | None]:
        """Store events of one stream, in order: for each `None`, or why it may not be stored."""
        try:
            if self.connected and await atomic.publish(self._nc, self.js, events):
                return [None] * len(events)
        except _FAILURES as error:
            return [BusError(repr(error))] * len(events)
        publishing = [self.publish(e.subject, e.payload, msg_id=e.msg_id) for e in events]
        return await asyncio.gather(*publishing, return_exceptions=True)

    async def ensure_stream(
        self, name: str, subjects: Sequence[str], max_age_s: float, *, max_bytes: int = -1
    ) -> None:
        """Create or update a stream kept by limits that, when full, refuses new events."""
        config = api.StreamConfig(
            name=name,
            subjects=list(subjects),
            retention=api.RetentionPolicy.LIMITS,
            discard=api.DiscardPolicy.NEW,
            storage=api.StorageType.FILE,
            max_age=max_age_s,
            max_bytes=max_bytes,
            allow_atomic=True,
        )
        await self._retry(lambda: self._declare(config))
        self._streams[name] = config

    async def ensure_kv(self, bucket: str, ttl_s: float | None = None) -> KeyValue:
        """Create the bucket where there is none; its entries live for `ttl_s` after their last write."""
        store = await self._retry(lambda: create_bucket(self.js, bucket, ttl_s))
        self._buckets[bucket] = ttl_s
        return store

    async def kv(self, bucket: str) -> KeyValue:
        """The bucket, waiting until its owner has created it."""
        return await self._retry(lambda: self.js.key_value(bucket))

    async def kv_put(self, bucket: str, key: str, value: bytes | None) -> None:
        """Store the key's value, or delete the key; raises `BusError`."""
        try:
            store = await self.js.key_value(bucket)
            await (store.delete(key) if value is None else store.put(key, value))
        except _FAILURES as error:
            raise BusError(f"{bucket}: {error!r}") from error

    async def consume(self, stream: str, durable: str, handler: BatchHandler, batch: int) -> NoReturn:
        """Give each event to `handler` in batches, at least once; acknowledge after it returns.

        When `handler` raises, the batch stays unacknowledged and comes again.
        """
        while True:
            try:
                await self._consume(stream, durable, handler, batch)
            except _FAILURES as error:
                _log.warning("consumer retries", stream=stream, durable=durable, error=repr(error))
                await self._pause(error)

    async def consumer_pending(self, stream: str, durable: str) -> int:
        """Events stored and not yet acknowledged by this consumer."""
        try:
            info = await self.js.consumer_info(stream, durable)
        except _FAILURES as error:
            raise BusError(repr(error)) from error
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def last_per_subject(
        self,
        stream: str,
        subject: str,
        handler: Handler,
        *,
        on_restart: Hook = lambda: None,
        on_current: Hook = lambda: None,
    ) -> NoReturn:
        """Give `handler` the last event of every subject that matches, then each new one, in order.

        After NATS was away it starts over: `on_restart` comes first, `on_current` once all stored was given.
        """
        while True:
            try:
                await self._follow(stream, subject, handler, on_restart, on_current)
            except _FAILURES as error:
                _log.debug("watch retries", stream=stream, subject=subject, error=repr(error))
                await self._pause(error)

    async def _consume(self, stream: str, durable: str, handler: BatchHandler, batch: int) -> None:
        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_deliver=-1,
            max_ack_pending=4 * batch,
        )
        pull = await self.js.pull_subscribe("", durable, stream=stream, config=config)
        try:
            while True:
                if messages := await fetch(pull, batch):
                    await handle(messages, handler)
        finally:
            if not self._nc.is_closed:
                await pull.unsubscribe()

    async def _follow(
        self, stream: str, subject: str, handler: Handler, on_restart: Hook, on_current: Hook
    ) -> None:
        generation = self.generation
        subscription = await self.js.subscribe(
            subject, stream=stream, ordered_consumer=True, deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT
        )
        try:
            on_restart()
            info = await subscription.consumer_info()
            current = not (info.num_pending or (info.delivered and info.delivered.consumer_seq))
            if current:
                on_current()
            while generation == self.generation:
                try:
                    message = await subscription.next_msg(timeout=RETRY_S)
                except TimeoutError:
                    continue
                handler(from_nats(message))
                if not current and message.metadata.num_pending == 0:
                    current = True
                    on_current()
        finally:
            if not self._nc.is_closed:
                await subscription.unsubscribe()

    async def _retry(self, operation: Callable[[], Awaitable[V]]) -> V:
        while True:
            try:
                return await operation()
            except _FAILURES as error:
                _log.info("waits for NATS", error=repr(error))
                await self._pause(error)

    async def _pause(self, error: Exception) -> None:
        # A connection that was closed comes back no more; the client says so to those it lets go of.
        if self._closing:
            raise BusError("this connection was closed") from error
        await asyncio.sleep(jittered(RETRY_S))

    async def _declare(self, config: api.StreamConfig) -> None:
        try:
            await self.js.add_stream(config)
        except BadRequestError:
            await self.js.update_stream(config)

    async def _open(self) -> None:
        self._nc = Client()
        self._js = self._nc.jetstream(timeout=PUBLISH_TIMEOUT_S)
        await self._nc.connect(
            self._url,
            name=self._name,
            inbox_prefix=_inbox_prefix(self._url),
            tls=self._tls,
            tls_handshake_first=self._tls is not None,
            max_reconnect_attempts=-1,
            reconnect_time_wait=cast("int", RECONNECT_S),
            ping_interval=10,
            max_outstanding_pings=2,
            error_cb=self._on_error,
            disconnected_cb=self._on_lost,
            reconnected_cb=self._on_connected,
            closed_cb=self._on_closed,
        )
        await self._on_connected()

    async def _on_connected(self) -> None:
        self._lost = False
        self.generation += 1
        _log.info("connected to NATS", server=str(self._nc.connected_server_version))
        try:
            for config in self._streams.values():
                await self._declare(config)
            for bucket, ttl_s in self._buckets.items():
                await create_bucket(self.js, bucket, ttl_s)
        except _FAILURES as error:
            _log.error("streams not declared again", error=repr(error))

    async def _on_lost(self) -> None:
        self.lost_at, self._lost = time.monotonic(), True
        if not self._closing:
            _log.warning("NATS is away")

    async def _on_closed(self) -> None:
        # The client gives a connection up for good on some server errors, such as a slow login.
        if not self._closing:
            await asyncio.sleep(jittered(RETRY_S))
            await self._open()

    async def _on_error(self, error: Exception) -> None:
        # While NATS is away each attempt fails alike: once is enough.
        if self.connected or not self._complained:
            _log.warning("NATS error", error=repr(error))
        self._complained = not self.connected


def _inbox_prefix(url: str) -> str:
    # Each user may read answers under its own prefix only.
    user = urlsplit(url).username
    return f"_INBOX.{user}" if user else "_INBOX"
