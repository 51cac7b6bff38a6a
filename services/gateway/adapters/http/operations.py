"""What operators and balancers read: `/health` and `/metrics`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest

from services.gateway.adapters.http.wire import json_bytes, json_response

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from services.gateway.adapters.health import Health


class OperationsFace:
    """Health and metrics; no key is asked for."""

    def __init__(self, health: Health, registry: CollectorRegistry) -> None:
        self._health = health
        self._registry = registry

    def routes(self) -> list[web.RouteDef]:
        """Paths and their handlers."""
        return [web.get("/health", self.health), web.get("/metrics", self.metrics)]

    async def health(self, _request: web.Request) -> web.Response:
        """200 while generations would be answered, else 503 and why."""
        problem = await self._health.problem()
        if problem is None:
            return json_response({"status": "ok"})
        body = json_bytes({"status": "unavailable", "reason": problem})
        return web.Response(body=body, status=503, content_type="application/json")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus' text format."""
        text = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
