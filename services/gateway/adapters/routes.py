"""Model routes, watched from the registry's bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.gateway.app.ports import Route
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from kit.bus import KvView

BUCKET = "routes"


class RouteTable:
    """Which model version a name means now."""

    def __init__(self, view: KvView[Route | None]) -> None:
        self._view = view

    def find(self, model: str, field: str = "model") -> Route:
        """The route of a name or `name@version`; raises NOT_FOUND naming `field`."""
        route = self._view.get(model.partition("@")[0])
        if route is None or model not in {route.name, route.model_version}:
            raise ServiceError(Code.NOT_FOUND, "NOT_FOUND", "there is no such model", field)
        return route

    def list(self) -> list[Route]:
        """Every route, by name."""
        return sorted((route for _, route in self._view.items() if route), key=lambda route: route.name)


def parse_route(data: bytes) -> Route | None:
    """A value of the bucket; None for a name that is not served now."""
    record = events_pb2.RouteRecord.FromString(data)
    if record.unserved:
        return None
    return Route(record.name, record.model_version, record.artifact_uri, record.context_length, record.family)
