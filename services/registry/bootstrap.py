"""Puts the registry together and lives its life: restore, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING

from kit import lifecycle, log, metrics
from kit.bus import Bus, BusError
from kit.grpc import Server
from services.registry.adapters.catalog import Catalog
from services.registry.adapters.deployments import Deployments
from services.registry.adapters.metrics import RegistryCollector
from services.registry.adapters.routes import ROUTES_BUCKET, Routes
from services.registry.core.assignments import Assignments
from services.registry.registry import Registry
from services.registry.servicer import RegistryServicer
from tokenloom.api.registry.v1 import registry_pb2_grpc

if TYPE_CHECKING:
    from services.registry.config import RegistryConfig

SERVICE = "tokenloom.api.registry.v1.RegistryService"
CALLERS = {
    SERVICE: ("operator",),
    f"{SERVICE}/JoinWorker": ("worker",),
    f"{SERVICE}/RenewLease": ("worker",),
}
FLUSH_S = 2.0
_log = log.get("registry")


async def serve(config: RegistryConfig, stop: asyncio.Event) -> None:
    """Run the registry until `stop`."""
    bus = await Bus.connect(config.nats_url, "registry", config.nats_tls)
    metrics_server, metrics_url = metrics.serve(config.metrics_listen)
    try:
        catalog = Catalog(config.models_dir)
        assignments = Assignments(config.lease_s)
        deployments = Deployments(bus, uuid.uuid4().hex)
        routes = Routes(bus, await bus.ensure_kv(ROUTES_BUCKET))
        metrics.REGISTRY.register(RegistryCollector(catalog, assignments, deployments))
        registry = Registry(
            catalog=catalog,
            routes=routes,
            assignments=assignments,
            deployments=deployments,
            served=config.serve_models,
            clock=time.monotonic,
        )
        await registry.restore()
        await _serve(config, stop, registry, deployments, metrics_url)
    finally:
        metrics_server.shutdown()
        await bus.close()


async def _serve(
    config: RegistryConfig,
    stop: asyncio.Event,
    registry: Registry,
    deployments: Deployments,
    metrics_url: str,
) -> None:
    server = Server(config.registry_listen, tls=config.tls, allowed=CALLERS)
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(RegistryServicer(registry), server.aio)
    tasks = [
        lifecycle.guard(asyncio.create_task(registry.expire_leases(), name="leases")),
        lifecycle.guard(asyncio.create_task(deployments.run(), name="deployments")),
    ]
    try:
        target = await server.start([SERVICE])
        for name in ("", SERVICE):
            await server.set_serving(name, serving=True)
        lifecycle.settle_gc()
        _log.info("ready", target=target, metrics=metrics_url, models=len(registry.models()))
        await stop.wait()
        _log.info("draining")
    finally:
        await server.stop(config.drain_grace_s)
        await lifecycle.end(*tasks)
        with contextlib.suppress(BusError, TimeoutError):
            await asyncio.wait_for(deployments.flush(), FLUSH_S)
