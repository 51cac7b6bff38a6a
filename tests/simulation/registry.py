"""The registry, as far as the others hear of it: what became of which worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from kit.bus import BusError
from tests.simulation.kernel import Process
from tests.simulation.nats import Nats, SimulatedBus
from tokenloom.api.events.v1 import events_pb2

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

LOOK_S = 0.5
LEASE_S = 2.0


class Registry(Process):
    """Publishes each change of a worker until it is stored; after a restart all of them again."""

    def __init__(self, nats: Nats, workers: list[Worker]) -> None:
        super().__init__(nats.world, "registry")
        self._nats, self._workers = nats, workers

    def on_start(self) -> None:
        self.loop.create_task(self._watch())

    async def _watch(self) -> None:
        bus = SimulatedBus(self._nats, self)
        told: dict[str, bytes] = {}
        heard: dict[str, float] = {}
        while True:
            for worker in self._workers:
                if worker.up and not worker.paused and not self._nats.network.silent(worker, self):
                    heard[worker.name] = self.world.now
                ready = self.world.now - heard.get(worker.name, -LEASE_S) < LEASE_S
                change = worker.change(
                    events_pb2.WORKER_AVAILABILITY_READY if ready else events_pb2.WORKER_AVAILABILITY_GONE
                )
                data = change.SerializeToString(deterministic=True)
                if told.get(worker.name) != data:
                    with suppress(BusError):
                        await bus.publish(
                            f"deployment.v1.worker.{worker.name}",
                            data,
                            msg_id=f"{self.life}-{self.world.now}",
                        )
                        told[worker.name] = data
            await asyncio.sleep(LOOK_S)
