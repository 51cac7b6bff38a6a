"""Free TCP ports of this host."""

from __future__ import annotations

import contextlib
import socket

from tokenloom.up.options import UpError

HOST = "127.0.0.1"


class Ports:
    """Finds ports that are free now, none twice."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def pick(self, wanted: int = 0) -> int:
        """The wanted port, or any free one for 0; raises `UpError` when it is in use."""
        while True:
            with contextlib.closing(socket.socket()) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, wanted))
                except OSError as error:
                    raise UpError(f"port {wanted} cannot be used: {error.strerror}; choose another") from None
                port = int(probe.getsockname()[1])
            if port not in self._taken:
                self._taken.add(port)
                return port
            if wanted:
                raise UpError(f"port {wanted} was asked for twice")
