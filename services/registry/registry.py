"""The registry's use cases: versions, routes and leases together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from kit import log
from services.registry.core.routing import choose_routes, deployed_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.registry.adapters.catalog import Catalog, Version
    from services.registry.adapters.deployments import Deployments
    from services.registry.adapters.routes import Routes
    from services.registry.core.assignments import Assignments, WorkerState

_log = log.get("registry")


class Registry:
    """Owns what exists, what is routed, and who serves it."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        routes: Routes,
        assignments: Assignments,
        deployments: Deployments,
        served: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._routes = routes
        self._assignments = assignments
        self._deployments = deployments
        self._served = served
        self._clock = clock
        self._routing = asyncio.Lock()

    async def restore(self) -> None:
        """Verify the artifacts, settle the routes, and trust for one lease who served before."""
        await asyncio.to_thread(self._catalog.scan)
        await self._routes.load()
        await self._settle_routes()
        for name in set(self._served) - self._routes.versions.keys():
            _log.warning("served model is not imported", name=name)
        announced = await self._deployments.last_announced()
        self._assignments.restore(announced, self._clock())

    async def register(self, model_version: str) -> Version:
        """Verify an artifact and make it a version; a name without a route gets it."""
        try:
            return await asyncio.to_thread(self._catalog.register, model_version)
        finally:
            # Also when it was refused: a route must not stay on a version that turned out damaged.
            await self._settle_routes()

    def models(self) -> list[tuple[Version, bool]]:
        """Every version, and whether its name routes to it."""
        current = set(self._routes.versions.values())
        return [(version, version.manifest.model_version in current) for version in self._catalog.all()]

    async def set_route(self, model_version: str) -> None:
        """Route a version's name to it."""
        version = self._catalog.get(model_version)
        async with self._routing:
            await self._set_route(version)
        _log.info("route set", model_version=model_version)

    def join(self, worker_id: str, target: str, incarnation: str, name: str) -> tuple[Version, bool]:
        """Assign a version to a worker process; also says whether it is its name's current one.

        A worker that is kept for one model's `name` gets that one's version and no other.
        """
        deployed = deployed_versions(self._routes.versions, self._served, name)
        assigned, changes = self._assignments.join(worker_id, target, incarnation, deployed, self._clock())
        self._deployments.announce(changes)
        _log.info("worker joined", worker=worker_id, target=target, model_version=assigned)
        return self._catalog.get(assigned), assigned in deployed

    @property
    def lease_s(self) -> float:
        """How long a lease lives after a renewal."""
        return self._assignments.lease_s

    def renew(self, worker_id: str, incarnation: str, state: WorkerState) -> None:
        """Keep a worker's lease."""
        self._deployments.announce(self._assignments.renew(worker_id, incarnation, state, self._clock()))

    async def expire_leases(self) -> NoReturn:
        """End leases when their time has come."""
        while True:
            now = self._clock()
            due = self._assignments.next_expiry() or now + self.lease_s
            wake_at = min(due, now + self.lease_s)
            await asyncio.sleep(wake_at - now)
            now = self._clock()
            if now - wake_at > self.lease_s / 2:
                _log.warning("stood still, leases extended", seconds=round(now - wake_at, 1))
                self._assignments.extend(now)
            self._deployments.announce(self._assignments.expire(now))

    async def _settle_routes(self) -> None:
        async with self._routing:
            routed = self._routes.versions
            wanted = choose_routes(routed, self._catalog.by_name(), self._served)
            for name in routed.keys() - wanted.keys():
                _log.error("route withdrawn: no sound version is left", name=name, was=routed[name])
                await self._routes.withdraw(name)
            for name, model_version in wanted.items():
                was = routed.get(name)
                if was not in {None, model_version}:
                    _log.error(
                        "route falls back: its version is not sound", name=name, was=was, now=model_version
                    )
                await self._set_route(self._catalog.get(model_version))

    async def _set_route(self, version: Version) -> None:
        served = not self._served or version.manifest.name in self._served
        await self._routes.set(version, served=served)
