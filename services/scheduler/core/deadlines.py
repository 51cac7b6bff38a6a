"""When something must end, earliest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SLACK = 64


class Deadlines:
    """A heap that forgets what has ended, so that it never outgrows what lives."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, float] = {}

    def add(self, request_id: int, deadline: float) -> None:
        """Watch a request."""
        self._live[request_id] = deadline
        heappush(self._heap, (deadline, request_id))

    def discard(self, request_id: int) -> None:
        """Stop watching a request; unknown ones are ignored."""
        if self._live.pop(request_id, None) is not None and len(self._heap) > 2 * len(self._live) + SLACK:
            self._heap = [(deadline, one) for one, deadline in self._live.items()]
            heapify(self._heap)

    def next(self) -> float | None:
        """Return the earliest deadline."""
        heap = self._heap
        while heap and heap[0][1] not in self._live:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[int]:
        """Stop watching and return the requests whose deadline has come."""
        found = []
        while (deadline := self.next()) is not None and deadline <= now:
            request_id = heappop(self._heap)[1]
            del self._live[request_id]
            found.append(request_id)
        return found
