"""State kept in streams: the last event of each subject, read once or watched into a local dict."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from nats.js.errors import BadRequestError

from kit import lifecycle, log

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, Iterator

    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

    from kit.bus import Bus
    from kit.messages import Message

V = TypeVar("V")
# How long the server remembers message ids: no longer than it keeps messages.
_DUPLICATES_S = 120.0
_log = log.get("kv")


async def create_bucket(js: JetStreamContext, bucket: str, ttl_s: float | None) -> KeyValue:
    """Create the bucket, or give the one that is there this time to live."""
    try:
        return await js.create_key_value(bucket=bucket, history=1, ttl=ttl_s)
    except BadRequestError:
        info = await js.stream_info(f"KV_{bucket}")
        info.config.max_age = ttl_s or 0
        info.config.duplicate_window = min(ttl_s or _DUPLICATES_S, _DUPLICATES_S)
        await js.update_stream(info.config)
        return await js.key_value(bucket)


async def last_events(bus: Bus, stream: str, subject: str) -> list[Message]:
    """The last event of every subject that matches, as of now; a deleted KV key has one too."""
    found: dict[str, Message] = {}
    current = asyncio.Event()

    def keep(message: Message) -> None:
        found[message.subject] = message

    following = bus.last_per_subject(stream, subject, keep, on_restart=found.clear, on_current=current.set)
    reading = asyncio.create_task(following)
    await current.wait()
    await lifecycle.end(reading)
    return list(found.values())


class KvView(Generic[V]):
    """A bucket's entries as a local dict that keeps its last values while NATS is away.

    `run` must be running; `parse` turns a value's bytes into what the view holds.
    """

    def __init__(self, bus: Bus, bucket: str, parse: Callable[[bytes], V]) -> None:
        self._bus, self._bucket, self._parse = bus, bucket, parse
        self._values: dict[str, V] = {}
        self._loading: dict[str, V] = {}
        self.version = 0  # rises with every change of which keys there are
        self._ready = asyncio.Event()
        self._generation = 0

    async def run(self) -> NoReturn:
        """Follow the bucket, waiting for its owner to create it."""
        prefix = f"$KV.{self._bucket}."
        await self._bus.last_per_subject(
            f"KV_{self._bucket}",
            f"{prefix}>",
            lambda message: self._apply(message.subject.removeprefix(prefix), message),
            on_restart=self._restart,
            on_current=self._current,
        )

    async def ready(self) -> None:
        """Return once the whole bucket has been read for the first time."""
        await self._ready.wait()

    def get(self, key: str) -> V | None:
        """The key's last known value."""
        return self._values.get(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def items(self) -> ItemsView[str, V]:
        """All last known values."""
        return self._values.items()

    def staleness_s(self) -> float:
        """How long ago the view was last known to be current; 0 while it is, infinite before it ever was."""
        if not self._ready.is_set():
            return math.inf
        if self._bus.connected and self._generation == self._bus.generation:
            return 0.0
        return time.monotonic() - self._bus.lost_at

    def _restart(self) -> None:
        # Built aside, so that readers keep the last values and keys that vanished go.
        self._loading = {}

    def _current(self) -> None:
        self._values = self._loading
        self.version += 1
        self._generation = self._bus.generation
        self._ready.set()

    def _apply(self, key: str, message: Message) -> None:
        before = len(self._values)
        self._take(key, message)
        self.version += len(self._values) != before

    def _take(self, key: str, message: Message) -> None:
        if message.deleted:
            self._loading.pop(key, None)
            return
        try:
            self._loading[key] = self._parse(message.data)
        except Exception as error:  # a value that nobody can read must not blind the service to the others
            _log.error("unreadable entry kept out", bucket=self._bucket, error=type(error).__name__)
