"""The network: ordered streams that break, silence between two processes, and single calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.kernel import Process, World

KEEPALIVE_S = 6.0


class Network:
    """Which pairs of processes hear one another, and how fast."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.slow_until = 0.0
        self.lossy = True
        self._cuts: dict[frozenset[str], int] = {}
        self._streams: list[Stream] = []

    def latency(self) -> float:
        """Seconds that the next message takes."""
        rng = self.world.rng
        if self.world.now < self.slow_until and rng.random() < 0.3:
            return rng.uniform(0.02, 0.6)
        return rng.uniform(0.0002, 0.004)

    def cut(self, one: str, other: str, for_s: float) -> None:
        """Let neither hear the other for a while; nobody is told."""
        pair = frozenset((one, other))
        token = self._cuts[pair] = self._cuts.get(pair, 0) + 1
        self.world.note("network", "cut", one, other, round(for_s, 3))
        self.world.after(for_s, lambda: self._heal(pair, token))
        for stream in self.between(one, other):
            stream.fall_silent()

    def heal_all(self) -> None:
        """End every silence."""
        for pair, token in list(self._cuts.items()):
            self._heal(pair, token)

    def silent(self, one: Process, other: Process) -> bool:
        """Whether these two do not hear one another now."""
        return bool(self._cuts) and frozenset((one.name, other.name)) in self._cuts

    def between(self, one: str, other: str) -> list[Stream]:
        """The open streams of two processes."""
        return [s for s in self._streams if {s.client.name, s.server.name} == {one, other}]

    def streams_of(self, process: Process) -> list[Stream]:
        """The open streams of a process."""
        return [s for s in self._streams if process in (s.client, s.server)]

    def add(self, stream: Stream) -> None:
        """Remember an open stream."""
        self._streams.append(stream)

    def remove(self, stream: Stream) -> None:
        """Forget one that broke."""
        if stream in self._streams:
            self._streams.remove(stream)

    def process_gone(self, process: Process) -> None:
        """Reset the streams of a crashed process."""
        for stream in self.streams_of(process):
            stream.break_off("peer gone")

    def loses_answer(self) -> bool:
        """Whether the answer to a single request is lost, as when the connection breaks under it."""
        return self.lossy and self.world.chance(0.03)

    def _heal(self, pair: frozenset[str], token: int) -> None:
        if self._cuts.get(pair) != token:
            return
        del self._cuts[pair]
        self.world.note("network", "heal", *sorted(pair))
        for stream in self.between(*sorted(pair)):
            stream.speak_again()


class Way:
    """One direction of a stream."""

    def __init__(self, stream: Stream, source: Process, target: Process) -> None:
        self._stream = stream
        self._source, self._target = source, target
        self._life = target.life
        self._last_at = 0.0
        self._sent = 0
        self._held: list[tuple[int, object]] = []  # number and message: what was under way comes late
        self.receive: Callable[[object], None] = lambda _: None
        self.on_break: Callable[[], None] = lambda: None
        self.ended = False
        self.unread = 0  # messages sent and not read
        self.on_room: Callable[[], None] | None = None
        self.last: object = None

    def was_read(self) -> None:
        """Tell a writer that waits that a message was read."""
        self.unread -= 1
        if self.on_room is not None:
            room, self.on_room = self.on_room, None
            room()

    def repeat(self) -> None:
        """Send the last message once more."""
        if self.last is not None:
            self.unread += 1
            self.send(self.last)

    def send(self, message: object) -> None:
        """Send; after a break it is lost, whether or not the sender knows."""
        network = self._stream.network
        if self._stream.broken:
            return
        self.last = message
        self._sent += 1
        if self._held or network.silent(self._source, self._target):
            self._held.append((self._sent, message))
        else:
            self._carry(self._sent, message)

    def _carry(self, number: int, message: object) -> None:
        world = self._stream.network.world
        self._last_at = max(self._last_at, world.now + self._stream.network.latency())
        self._target.deliver(self._last_at - world.now, lambda: self._arrive(number, message))

    def _arrive(self, number: int, message: object) -> None:
        if self.ended or self._target.life != self._life:
            return
        if not self._stream.broken and self._stream.network.silent(self._source, self._target):
            self._held.append((number, message))
        else:
            self.receive(message)

    def flush(self) -> None:
        """Send what a silence held back, in order."""
        held, self._held = self._held, []
        for number, message in sorted(held, key=lambda one: one[0]):
            self._carry(number, message)

    def end(self, delay_s: float, silent_s: float = 0.0) -> None:
        """Tell the target that no more will come; through a silence, once its keepalive tells."""
        self._target.deliver(delay_s, lambda: self._say_end(silent_s))

    def _say_end(self, silent_s: float) -> None:
        if self.ended or self._target.life != self._life:
            return
        if self._stream.network.silent(self._source, self._target) and silent_s < KEEPALIVE_S:
            self.end(0.5, silent_s + 0.5)
            return
        self.ended = True
        self.on_break()


class Stream:
    """Two ordered directions that break together; each end hears of it in its own time."""

    def __init__(
        self, network: Network, client: Process, server: Process, method: str = "", window: int = 64
    ) -> None:
        self.network = network
        self.client, self.server = client, server
        self.method, self.window = method, window
        self.broken = False
        self.up: Way = Way(self, client, server)
        self.down: Way = Way(self, server, client)
        self._silences = 0
        network.add(self)

    def break_off(self, why: str) -> None:
        """Break: what is under way may be lost; each end hears of it in its own time."""
        if self.broken:
            return
        self.broken = True
        self.network.remove(self)
        world = self.network.world
        world.note("network", "break", self.client.name, self.server.name, why)
        for way in (self.up, self.down):
            late = self.network.lossy and world.chance(0.2)
            way.end(world.rng.uniform(0.05, 1.5) if late else world.rng.uniform(0.0005, 0.05))

    def close(self, by_client: bool) -> None:
        """End the stream from one side, after what that side said."""
        if self.broken:
            return
        self.broken = True
        self.network.remove(self)
        delay_s = self.network.latency() + 0.005
        (self.up if by_client else self.down).end(delay_s)
        (self.down if by_client else self.up).ended = True

    def fall_silent(self) -> None:
        """Break when the silence lasts longer than keepalives allow."""
        self._silences += 1
        silence = self._silences
        self.network.world.after(KEEPALIVE_S, lambda: self._timed_out(silence))

    def speak_again(self) -> None:
        """Go on after a silence."""
        self._silences += 1
        self.up.flush()
        self.down.flush()

    def _timed_out(self, silence: int) -> None:
        if silence == self._silences:
            self.break_off("keepalive")
