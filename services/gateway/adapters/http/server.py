"""The HTTP server: all faces in one application."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from kit.renewal import server_context
from services.gateway.adapters.http.errors import contract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kit.errors import ServiceError
    from kit.tls import KeyPair

_UNIX = "unix:"
_GRACE_S = 3.0


class Face(Protocol):
    """A set of paths."""

    def routes(self) -> list[web.RouteDef]:
        """Paths and their handlers."""


class HttpServer:
    """Serves faces until `stop`; a client that vanishes cancels its handler."""

    def __init__(
        self,
        faces: Iterable[Face],
        *,
        refused: Callable[[ServiceError], None],
        body_limit_bytes: int,
    ) -> None:
        app = web.Application(client_max_size=body_limit_bytes, middlewares=[contract(refused)])
        for face in faces:
            app.add_routes(face.routes())
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, logger=_logger(), shutdown_timeout=_GRACE_S
        )

    async def start(self, listen: str, tls: KeyPair | None = None) -> str:
        """Listen; returns the base URL, port 0 resolved."""
        context = server_context(tls) if tls else None
        await self._runner.setup()
        if listen.startswith(_UNIX):
            await web.UnixSite(self._runner, listen.removeprefix(_UNIX), ssl_context=context).start()
            return listen
        host, _, port = listen.rpartition(":")
        await web.TCPSite(self._runner, host, int(port), backlog=1024, ssl_context=context).start()
        return f"{'https' if tls else 'http'}://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Stop listening, let handlers say their last within a short grace, then cancel them."""
        await self._runner.cleanup()


def _logger() -> logging.Logger:
    # Of what is no HTTP the library logs the exception, which quotes headers, keys and bodies.
    logger = logging.getLogger("tokenloom.http")
    logger.addFilter(_without_exception)
    return logger


def _without_exception(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True
