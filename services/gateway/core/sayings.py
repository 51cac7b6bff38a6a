"""What a gateway has to say on its stream: in order, and again where its arrival was not proven."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from services.gateway.core.lane_messages import Cancel, Detach, Heartbeat, Open, Settle

if TYPE_CHECKING:
    from collections.abc import Container

    from services.gateway.core.lane_messages import Up
    from services.gateway.core.lease import Lease

# What was said must be heard: it is said again on the next stream unless its arrival was proven.
_LASTING = (Cancel, Settle, Detach)


class Sayings:
    """Messages to write, and those that are written and not yet proven to have arrived."""

    def __init__(self) -> None:
        self._waiting: deque[Up] = deque()
        self._unproven: deque[Up] = deque()  # with the heartbeats between

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def all_proven(self) -> bool:
        """Whether all that was said has arrived."""
        return not (self._waiting or self._unproven)

    def say(self, *messages: Up) -> None:
        """Have something written, after all that waits."""
        self._waiting.extend(messages)

    def beat(self) -> None:
        """Ask for the proof that all until now has arrived."""
        self.say(Heartbeat(0))

    def next(self, lease: Lease, now: float) -> Up | None:
        """What to write next; None when all is said. A heartbeat gets its number now."""
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        if isinstance(message, Heartbeat):
            message = Heartbeat(lease.beat(now))
        if isinstance(message, (*_LASTING, Open, Heartbeat)):
            self._unproven.append(message)
        return message

    def proven(self, sequence: int) -> list[Open]:
        """A heartbeat has arrived; what was opened before it."""
        opened: list[Open] = []
        if Heartbeat(sequence) in self._unproven:
            while (message := self._unproven.popleft()) != Heartbeat(sequence):
                if isinstance(message, Open):
                    opened.append(message)
        return opened

    def cut_off(self, wanted: Container[int]) -> None:
        """The stream is lost. What was let go and is wanted again must not be let go on the next one."""
        said = [*self._unproven, *self._waiting]
        self._unproven.clear()
        self._waiting = deque(
            message
            for message in said
            if isinstance(message, _LASTING)
            and not (isinstance(message, Detach) and message.request_id in wanted)
        )
