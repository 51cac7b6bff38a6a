"""A registry process, the artifacts it is given, and what its workers' events say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit import artifacts, lifecycle
from kit.grpc import channel
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.registry.v1 import registry_pb2, registry_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from kit.bus import Bus

READY, DRAINING = worker_pb2.WORKER_STATE_READY, worker_pb2.WORKER_STATE_DRAINING
LEASE_S = 1.5


def publish(models_dir: Path, name: str, weights: bytes = b"\0" * 64) -> str:
    """A tiny artifact; the registry never looks into the files."""
    meta = artifacts.ManifestMeta(
        name=name,
        family="llama",
        context_length=64,
        source="test",
        licence="mit",
        eos_token_ids=(2,),
        bos_token_id=1,
    )
    with artifacts.staging(models_dir) as staged:
        for file, data in {
            "config.json": b"{}",
            "model.safetensors": weights,
            "tokenizer.json": b"{}",
        }.items():
            (staged / file).write_bytes(data)
        return artifacts.publish(staged, models_dir, meta).model_version


def flip_byte(models_dir: Path, model_version: str, file: str) -> None:
    path = artifacts.locate(models_dir, model_version) / file
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def _spawn(env: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "services.registry"]
    return subprocess.Popen(command, env=env, stderr=log, stdout=subprocess.PIPE)


class RegistryProcess:
    """`python -m services.registry`, its log, and a stub to call it."""

    def __init__(self, directory: Path, nats_url: str, models_dir: Path) -> None:
        self._log_path = directory / "registry.log"
        self._listen = f"unix:{directory}/registry.sock"
        self._env = os.environ | {
            "TOKENLOOM_NATS_URL": nats_url,
            "TOKENLOOM_STATE_DIR": str(directory),
            "TOKENLOOM_MODELS_DIR": str(models_dir),
            "TOKENLOOM_REGISTRY_LISTEN": self._listen,
            "TOKENLOOM_LEASE_S": str(LEASE_S),
            "TOKENLOOM_LOG_FORMAT": "json",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.channel = channel(self._listen)
        self.stub = registry_pb2_grpc.RegistryServiceStub(self.channel)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log_path.read_text().splitlines()]

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log() if entry["event"] == event]

    async def start(self, **env: str) -> None:
        with self._log_path.open("wb") as log:
            self._process = _spawn(self._env | env, log)
        await self.serving()

    async def serving(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            assert time.monotonic() < deadline, self._log_path.read_text()
            # A connection of its own: one that failed before waits for seconds, and leases run out meanwhile.
            async with channel(self._listen, options=(("grpc.use_local_subchannel_pool", 1),)) as asking:
                health = health_pb2_grpc.HealthStub(asking)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    response = await health.Check(health_pb2.HealthCheckRequest(), timeout=1)
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            await asyncio.sleep(0.02)

    def end(self, signum: int) -> tuple[int, bytes]:
        """Signal the process; its exit code and what it wrote to stdout."""
        assert self._process
        self._process.send_signal(signum)
        out, _ = self._process.communicate(timeout=10)
        code = self._process.returncode
        self._process = None
        return code, out

    async def close(self) -> None:
        await self.channel.close()
        if self._process:
            self.end(signal.SIGKILL)

    async def join(
        self, worker_id: str, incarnation: str = "i1", model: str = ""
    ) -> registry_pb2.JoinWorkerResponse:
        return await self.stub.JoinWorker(
            registry_pb2.JoinWorkerRequest(
                worker_id=worker_id, target=f"{worker_id}:1", incarnation=incarnation, model=model
            )
        )

    async def renew(
        self, worker_id: str, state: worker_pb2.WorkerState = READY, incarnation: str = "i1"
    ) -> None:
        await self.stub.RenewLease(
            registry_pb2.RenewLeaseRequest(worker_id=worker_id, incarnation=incarnation, state=state)
        )


class WorkerEvents:
    """The events of one worker, as the scheduler sees them."""

    def __init__(self, bus: Bus, worker: str) -> None:
        self.seen: list[events_pb2.WorkerChanged] = []
        self._task = asyncio.create_task(
            bus.last_per_subject(
                "DEPLOYMENT",
                f"deployment.v1.worker.{worker}",
                lambda message: self.seen.append(events_pb2.WorkerChanged.FromString(message.data)),
                on_restart=self.seen.clear,
            )
        )

    @property
    def kinds(self) -> list[tuple[str, str]]:
        prefix = "WORKER_AVAILABILITY_"
        return [
            (events_pb2.WorkerAvailability.Name(e.availability).removeprefix(prefix), e.incarnation)
            for e in self.seen
        ]

    async def stop(self) -> None:
        await lifecycle.end(self._task)
