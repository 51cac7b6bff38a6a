"""What the operator reads: one line an event, prefixed with who says it."""

from __future__ import annotations

import os
import zlib
from typing import TextIO

SELF = "up"
_BOLD = 1
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class Console:
    """Writes prefixed lines to a stream; colours the prefix on a terminal only."""

    def __init__(self, stream: TextIO, *, services: TextIO | None = None, width: int = 11) -> None:
        self._stream = stream
        self._services = services or stream
        self._width = width

    def event(self, text: str) -> None:
        """Say something of the supervisor's own."""
        self._write(self._stream, SELF, text)

    def output(self, name: str, text: str) -> None:
        """Pass on a line that a service wrote."""
        self._write(self._services, name, text)

    def _write(self, stream: TextIO, name: str, text: str) -> None:
        prefix = f"{name:<{self._width}}|"
        if stream.isatty() and "NO_COLOR" not in os.environ:
            colour = _BOLD if name == SELF else _COLOURS[zlib.crc32(name.encode()) % len(_COLOURS)]
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        stream.write(f"{prefix} {text}\n")
        stream.flush()
