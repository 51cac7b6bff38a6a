"""NATS as its clients see it: streams that store once by message id, consumers, keys with revisions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import nats.errors
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from kit.bus import Bus
from kit.messages import Handler, Hook, Message
from tests.simulation.kernel import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.network import Network

DEDUP_S = 120.0
POLL_S = 0.5
PUBLISH_TIMEOUT_S = 2.0
WRONG_REVISION, DUPLICATE_IN_BATCH = 10071, 10201


@dataclass(slots=True)
class Stored:
    """One message of a stream."""

    sequence: int
    subject: str
    data: bytes
    headers: dict[str, str]
    at: float  # seconds since 1970


@dataclass(slots=True)
class Consumer:
    """A durable consumer: what is acknowledged, and what was given and until when it may be."""

    ack_wait_s: float
    acked: set[int] = field(default_factory=set)
    given: dict[int, float] = field(default_factory=dict)
    first: int = 0


@dataclass(slots=True)
class Watch:
    """Who hears of new messages, and up to where it has."""

    watcher: Process
    life: int
    handler: Callable[[Stored], None]
    given: dict[str, int] = field(default_factory=dict)
    at: float = 0.0


class Nats(Process):
    """The server. What it stored it keeps: it syncs before it acknowledges."""

    def __init__(self, network: Network) -> None:
        super().__init__(network.world, "nats")
        self.network = network
        self.usage: list[Stored] = []
        self.last: dict[str, Stored] = {}  # the last message of every other subject
        self.consumers: dict[str, Consumer] = {}
        self.full = False
        self._sequence = 0
        self._seen: dict[str, float] = {}
        self._watches: list[Watch] = []

    @property
    def caught_up(self) -> bool:
        """Whether every usage event is acknowledged."""
        return all(len(one.acked) == len(self.usage) for one in self.consumers.values())

    def store(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store a message, unless its id was seen or its revision is not the key's; returns its sequence."""
        if self.full and subject.startswith("usage."):
            raise APIError(code=400, err_code=10077, description="maximum bytes exceeded")
        now = self.world.now
        msg_id = headers.get(api.Header.MSG_ID.value)
        if msg_id is not None and now - self._seen.get(msg_id, -DEDUP_S) < DEDUP_S:
            return self._sequence
        expected = headers.get(api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value)
        held = self.last.get(subject)
        if expected is not None and int(expected) != (held.sequence if held is not None else 0):
            raise APIError(code=400, err_code=WRONG_REVISION, description="wrong last sequence")
        if msg_id is not None:
            self._seen[msg_id] = now
        self._sequence += 1
        message = Stored(self._sequence, subject, data, headers, self.wall())
        if subject.startswith("usage."):
            self.usage.append(message)
            return self._sequence
        self.last[subject] = message
        for watch in self._watches:
            self._catch_up(watch)
        return self._sequence

    def store_all(self, batch: list[tuple[str, bytes, dict[str, str]]]) -> int:
        """Store all messages or, where one is stored already, none; returns the last one's sequence."""
        now = self.world.now
        seen = [self._seen.get(headers[api.Header.MSG_ID.value], -DEDUP_S) for _, _, headers in batch]
        if any(now - at < DEDUP_S for at in seen):
            raise APIError(code=400, err_code=DUPLICATE_IN_BATCH, description="duplicate message id")
        return max(self.store(*message) for message in batch)

    def watch(self, watcher: Process, handler: Callable[[Stored], None]) -> None:
        """Give the last message of each subject, then each new one."""
        self._watches = [one for one in self._watches if one.watcher is not watcher]
        self._watches.append(Watch(watcher, watcher.life, handler))
        self._catch_up(self._watches[-1])

    def due(self, consumer: Consumer, most: int) -> list[Stored]:
        """Take what is to be delivered now, the oldest first; after a redelivery nothing has an order."""
        now, usage = self.world.now, self.usage
        while consumer.first < len(usage) and usage[consumer.first].sequence in consumer.acked:
            consumer.first += 1
        found = []
        for message in usage[consumer.first :]:
            if message.sequence not in consumer.acked and consumer.given.get(message.sequence, 0.0) <= now:
                consumer.given[message.sequence] = now + consumer.ack_wait_s
                found.append(message)
                if len(found) == most:
                    break
        if len(found) > 1 and self.world.chance(0.2):
            self.world.rng.shuffle(found)
        return found

    def on_start(self) -> None:
        for watch in self._watches:
            watch.given.clear()
            self._catch_up(watch)

    def _catch_up(self, watch: Watch) -> None:
        """Tell a watcher what is new; while it cannot be reached, later."""
        if not self.up or watch.watcher.life != watch.life:
            return
        if self.network.silent(self, watch.watcher):
            self.after(POLL_S, lambda: self._catch_up(watch))
            return
        for message in self.last.values():
            if watch.given.get(message.subject, 0) < message.sequence:
                watch.given[message.subject] = message.sequence
                watch.at = max(watch.at, self.world.now + self.network.latency())
                watch.watcher.deliver(watch.at - self.world.now, partial(watch.handler, message))


class JetStream:
    """The client's JetStream context, as far as this platform uses it."""

    def __init__(self, server: Nats, client: Process) -> None:
        self._server, self._client = server, client
        self._batch: list[tuple[str, bytes, dict[str, str]]] = []

    async def publish(self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None) -> Any:
        """Store, with the batch that it ends; an answer that is lost is a timeout."""
        batch = [(subject, payload, dict(headers or {}))]
        if api.Header.BATCH_COMMIT.value in batch[0][2]:
            batch, self._batch = self._batch + batch, []
            sequence = await self._ask(lambda: self._server.store_all(batch))
        else:
            sequence = await self._ask(lambda: self._server.store(*batch[0]))
        return SimpleNamespace(seq=sequence, batch_size=len(batch))

    async def stage(self, subject: str, payload: bytes, *, headers: dict[str, str]) -> None:
        """Begin or go on with a batch; a connection keeps order, so it may as well go with its end."""
        self._batch.append((subject, payload, headers))

    async def get_msg(self, stream: str, *, subject: str) -> Any:
        """The last message of a subject."""
        found = await self._ask(lambda: self._server.last.get(subject))
        if found is None:
            raise NotFoundError(code=404)
        return SimpleNamespace(data=found.data, headers=found.headers, seq=found.sequence)

    async def pull_subscribe(
        self, subject: str, durable: str, *, stream: str, config: Any
    ) -> PullSubscription:
        """Bind a durable consumer."""
        consumer = self._server.consumers.setdefault(durable, Consumer(config.ack_wait))
        return PullSubscription(self._server, self._client, consumer)

    async def _ask(self, serve: Callable[[], Any]) -> Any:
        server, client = self._server, self._client
        done = asyncio.get_running_loop().create_future()

        def answer(value: Any) -> None:
            if not done.done():
                if isinstance(value, Exception):
                    done.set_exception(value)
                else:
                    done.set_result(value)

        def handle() -> None:
            try:
                value = serve()
            except APIError as error:
                value = error
            # The connection may break between the store and its answer.
            if not server.network.silent(client, server) and not server.network.loses_answer():
                client.deliver(server.network.latency(), lambda: answer(value))

        if server.up and not server.network.silent(client, server):
            server.deliver(server.network.latency(), handle)
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                return await done
        except TimeoutError:
            raise nats.errors.TimeoutError from None


class PullSubscription:
    """Fetches batches of a consumer."""

    def __init__(self, server: Nats, client: Process, consumer: Consumer) -> None:
        self._server, self._client, self._consumer = server, client, consumer

    async def fetch(self, batch: int, timeout: float) -> list[Any]:  # noqa: ASYNC109
        """Messages as soon as there are any; raises TimeoutError."""
        server, left = self._server, timeout
        while True:
            if server.up and not server.network.silent(self._client, server):
                found = server.due(self._consumer, batch)
                await asyncio.sleep(server.network.latency())
                if found:
                    return [_Delivery(self, message) for message in found]
            if left <= 0:
                raise TimeoutError
            await asyncio.sleep(min(left, POLL_S))
            left -= POLL_S

    async def unsubscribe(self) -> None:
        """Leave the consumer to others."""

    def say(self, sequence: int, *, done: bool) -> None:
        """Acknowledge, or ask for the message again; lost when NATS does not hear it."""
        server, consumer = self._server, self._consumer

        def hear() -> None:
            if done:
                consumer.acked.add(sequence)
            else:
                consumer.given[sequence] = 0.0

        if server.up and not server.network.silent(self._client, server):
            server.deliver(server.network.latency(), hear)


class _Delivery:
    """A message with its acknowledgement."""

    def __init__(self, subscription: PullSubscription, message: Stored) -> None:
        self._subscription, self._message = subscription, message
        self.subject, self.data, self.headers = message.subject, message.data, message.headers

    @property
    def metadata(self) -> Any:
        at = datetime.fromtimestamp(self._message.at, UTC)
        return SimpleNamespace(sequence=SimpleNamespace(stream=self._message.sequence), timestamp=at)

    async def ack(self) -> None:
        self._subscription.say(self._message.sequence, done=True)

    async def nak(self) -> None:
        self._subscription.say(self._message.sequence, done=False)


class SimulatedBus(Bus):
    """The production bus over this NATS; only connecting and watching are its own."""

    def __init__(self, server: Nats, client: Process) -> None:
        self._server, self._client = server, client
        self._stream = JetStream(server, client)
        self._nc = SimpleNamespace(is_closed=False, publish=self._stream.stage)  # type: ignore[assignment]

    @property
    def connected(self) -> bool:
        return self._server.up

    @property
    def js(self) -> Any:
        return self._stream

    async def last_per_subject(
        self,
        stream: str,
        subject: str,
        handler: Handler,
        *,
        on_restart: Hook = lambda: None,
        on_current: Hook = lambda: None,
    ) -> NoReturn:
        prefix = subject.rstrip("*>")

        def give(message: Stored) -> None:
            if message.subject.startswith(prefix):
                handler(Message(message.subject, message.data, message.sequence, message.at))

        self._server.watch(self._client, give)
        await asyncio.get_running_loop().create_future()
        raise AssertionError
