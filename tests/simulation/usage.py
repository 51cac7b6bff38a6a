"""The usage service: the production consumer and recorder over a table in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from services.usage.adapters.ledger import Recorded
from services.usage.core.ledger import Audit, Entry, Renewal, Row, fold, last_heard
from services.usage.recorder import Recorder
from tests.simulation.kernel import Process
from tests.simulation.nats import Nats, SimulatedBus

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH = 16


class DatabaseError(Exception):
    """A transaction did not commit, or nobody knows whether it did."""


class Database:
    """What was committed; it outlives the service."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.audit: list[Audit] = []
        self.failing = False
        self.failures = 0


class _Ledger:
    """Where the recorder writes: one transaction a batch."""

    def __init__(self, process: Process, database: Database, window_s: float) -> None:
        self._process, self._database = process, database
        self._window_us = int(window_s * 1e6)

    async def record(
        self, entries: Sequence[Entry], renewals: Sequence[Renewal], unreadable: Sequence[bytes], now_us: int
    ) -> Recorded:
        world, database = self._process.world, self._database
        if unreadable:
            world.fail("an event cannot be read")
        wanted = {entry.request_id for entry in entries} | last_heard(renewals).keys()
        stored = {key: database.rows[key] for key in sorted(wanted) if key in database.rows}
        changed, losers = fold(stored, entries, renewals, now_us, self._window_us)
        await asyncio.sleep(world.rng.uniform(0.001, 0.02))
        if not database.failing or world.chance(0.3):  # an error may come after the commit
            database.rows.update({row.entry.request_id: row for row in changed})
            database.audit += losers
        if database.failing:
            database.failures += 1
            world.note(self._process.name, "commit failed")
            raise DatabaseError
        await asyncio.sleep(0.0005)  # a crash here leaves the batch to come again
        return Recorded(len(changed), {})


class Usage(Process):
    """One consumer of the stream of usage events."""

    def __init__(self, nats: Nats, database: Database, window_s: float) -> None:
        super().__init__(nats.world, "usage")
        self._nats, self._database, self._window_s = nats, database, window_s

    def on_start(self) -> None:
        bus = SimulatedBus(self._nats, self)
        recorder = Recorder(_Ledger(self, self._database, self._window_s))  # type: ignore[arg-type]
        self.loop.create_task(bus.consume("USAGE", "ledger", recorder, BATCH))
