"""Registry, scheduler and workers as the processes they are, on a small model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.integration.scheduler.support import PlayedGateway, until
from tests.integration.scheduler.tiny import make_models_dir
from tokenloom.api.scheduler.v1 import scheduler_pb2


class Processes:
    """Starts `python -m services.NAME` with what each is told; ends what it started."""

    def __init__(self, nats_url, directory):
        self.directory = directory
        self.model = make_models_dir(directory / "models")
        self.target = f"unix:{directory}/s.sock"
        self._registry_target = f"unix:{directory}/r.sock"
        self._nats_url = nats_url
        self.running: dict[str, asyncio.subprocess.Process] = {}
        self.gateways: list[PlayedGateway] = []

    async def spawn(self, service, name, **settings):
        told = {"NATS_URL": self._nats_url, "STATE_DIR": self.directory / name, **settings}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOKENLOOM_")}
        environment |= {f"TOKENLOOM_{key}": str(value) for key, value in told.items()}
        with (self.directory / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"services.{service}", env=environment, stderr=log, stdout=log
            )
        self.running[name] = process
        return process

    async def registry(self):
        return await self.spawn(
            "registry",
            "registry",
            REGISTRY_LISTEN=self._registry_target,
            MODELS_DIR=self.directory / "models",
            LEASE_S=2,
        )

    async def scheduler(self, **settings):
        told = {"SCHEDULER_LISTEN": self.target, "DRAIN_GRACE_S": 1, "LEASE_S": 120, **settings}
        return await self.spawn("scheduler", "scheduler", **told)

    async def worker(self, name="w1", **settings):
        return await self.spawn(
            "worker",
            name,
            WORKER_ID=name,
            WORKER_LISTEN=f"unix:{self.directory}/{name}.sock",
            REGISTRY_TARGET=self._registry_target,
            WORKER_DTYPE="float32",
            WORKER_THREADS=1,
            PAGE_COUNT=128,
            SLOT_COUNT=32,
            **settings,
        )

    async def kill(self, name, how=signal.SIGKILL):
        process = self.running.pop(name)
        process.send_signal(how)
        return await asyncio.wait_for(process.wait(), 15)

    async def gateway(self, gateway_id="gw"):
        gateway = await PlayedGateway(self.target, gateway_id).open()
        self.gateways.append(gateway)
        return gateway

    async def until_lane(self, condition):
        stub = self.gateways[0].stub

        async def ask():
            return (await stub.Inspect(scheduler_pb2.InspectRequest())).lanes

        (lane,) = await until(ask, lambda lanes: bool(lanes) and condition(lanes[0]), within_s=40)
        return lane

    async def end(self):
        for gateway in self.gateways:
            await gateway.close()
        for name in ("w1", "w2", "scheduler", "registry"):
            if name in self.running:
                await self.kill(name, signal.SIGTERM)
