"""Serves the document."""

from __future__ import annotations

from aiohttp import web

from services.gateway.adapters.http.openapi.document import document
from services.gateway.adapters.http.wire import json_bytes


class DocumentFace:
    """`/openapi.json`; no key is asked for."""

    def __init__(self) -> None:
        self._body = json_bytes(document())

    def routes(self) -> list[web.RouteDef]:
        """Paths and their handlers."""
        return [web.get("/openapi.json", self.get)]

    async def get(self, _request: web.Request) -> web.Response:
        """What this gateway takes and answers."""
        return web.Response(body=self._body, content_type="application/json")
