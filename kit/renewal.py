"""Certificates that are renewed while a service runs: new connections get them without a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import prometheus_client

from kit import log
from kit.tls import accepting, expires_at

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from kit.tls import KeyPair

T = TypeVar("T")
EXPIRES = prometheus_client.Gauge(
    "tokenloom_certificate_expires_timestamp_seconds",
    "When a listener's certificate ends, Unix time",
    ["cert"],
)
_log = log.get("tls")


class Renewed(Generic[T]):
    """What `make` makes of files, made again once they changed; a renewal of no use is passed over."""

    def __init__(self, files: tuple[Path, ...], make: Callable[[], T]) -> None:
        self._files, self._make = files, make
        self._seen = self._stamps()
        self.value = make()

    def refresh(self) -> bool:
        """Look at the files; whether `value` is another one now."""
        if (now := self._stamps()) == self._seen:
            return False
        self._seen = now
        try:
            self.value = self._make()
        except OSError as error:  # every error of `ssl` is one
            _log.error("renewed certificate not used", cert=str(self._files[0]), error=str(error))
            return False
        _log.info("certificate renewed", cert=str(self._files[0]))
        return True

    def _stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(path) for path in self._files]


def tell_expiry(pair: KeyPair) -> None:
    """Export when the pair's certificate ends."""
    EXPIRES.labels(pair.cert.name).set(expires_at(pair))


def server_context(pair: KeyPair) -> ssl.SSLContext:
    """For a listener that anyone may connect to; renewed files count from the next connection on."""
    current = Renewed(pair.files, lambda: accepting(pair))
    listening = current.value

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if current.refresh() or current.value is not listening:
            connection.context = current.value

    listening.sni_callback = choose
    return listening


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
