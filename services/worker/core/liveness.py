"""When an engine counts as alive: no step runs longer than any step may."""

from __future__ import annotations


class Liveness:
    """Tells a busy engine from a hung one. An idle engine is alive, however long it idles."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._busy_since: float | None = None

    def started(self, now: float) -> None:
        """Note that a step began."""
        self._busy_since = now

    def finished(self) -> None:
        """Note that the step ended."""
        self._busy_since = None

    def hung(self, now: float) -> bool:
        """Whether one step has been running longer than any step may."""
        since = self._busy_since
        return since is not None and now - since > self._hang_s
