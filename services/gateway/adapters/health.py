"""Whether this gateway can serve: alive is not enough."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from kit.errors import ServiceError

if TYPE_CHECKING:
    from kit.bus import KvView
    from services.gateway.adapters.keys import KeyRing
    from services.gateway.adapters.lane import LaneClient
    from services.gateway.adapters.records import SchedulerRecords
    from services.gateway.adapters.routes import RouteTable
    from services.gateway.app.generations import Generations
    from tokenloom.api.scheduler.v1 import scheduler_pb2

# An idle lane proves itself with a probe more often than this.
STEP_AGE_S = 10.0
_KEPT_S = 0.5


class Health:
    """Says what is wrong, or nothing."""

    def __init__(
        self,
        *,
        generations: Generations,
        lane: LaneClient,
        views: list[KvView[Any]],
        keys: KeyRing,
        routes: RouteTable,
        records: SchedulerRecords,
    ) -> None:
        self._generations, self._lane, self._views = generations, lane, views
        self._keys, self._routes, self._records = keys, routes, records
        self._checked = -math.inf
        self._found: str | None = None

    def unready(self) -> str | None:
        """Why requests cannot be taken at all."""
        if self._generations.draining:
            return "the gateway is shutting down"
        if not self._lane.connected:
            return "no scheduler is reachable"
        if any(math.isinf(view.staleness_s()) for view in self._views):
            return "keys and routes are not loaded yet"
        if self._keys.stale:
            return "NATS has been away for so long that API keys are no longer believed"
        return None

    async def problem(self) -> str | None:
        """Why requests would not be answered; asks the scheduler at most twice a second."""
        if unready := self.unready():
            return unready
        if time.monotonic() - self._checked >= _KEPT_S:
            self._found = await self._ask()
            self._checked = time.monotonic()
        return self._found

    async def _ask(self) -> str | None:
        try:
            lanes = {lane.model_version: lane for lane in await self._records.lanes()}
        except ServiceError as error:
            return error.message
        routes = self._routes.list()
        if not routes:
            return "no model is deployed"
        problems = [_problem_of(route.model_version, lanes) for route in routes]
        return next((problem for problem in problems if problem), None)


def _problem_of(model_version: str, lanes: dict[str, scheduler_pb2.LaneStatus]) -> str | None:
    lane = lanes.get(model_version)
    if lane is None or not lane.workers:
        return f"no worker serves {model_version}"
    age_s = lane.last_step_age_us / 1e6
    if age_s > STEP_AGE_S:
        return f"the lane of {model_version} has not stepped for {age_s:.0f} s"
    return None
