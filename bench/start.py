"""How soon a worker is ready: from its process's start to its registry hearing so; the model is imported."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from bench.figures import Figure
from bench.processes import cpu_s, module
from kit import artifacts
from tests.models import SMOLLM2, imported
from tokenloom.api.registry.v1 import registry_pb2, registry_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2

PRECISIONS = ("bfloat16", "int8")
READY_S = 5.0
ROUNDS = 3
_LEASE_US = 3_000_000


class _Registry(registry_pb2_grpc.RegistryServiceServicer):
    """Assigns one model, and notes when a worker of it is ready."""

    def __init__(self, artifact: Path) -> None:
        version = f"{artifact.parent.name}@{artifact.name}"
        self._model = registry_pb2.ModelVersion(model_version=version, artifact_uri=artifact.as_uri())
        self.ready = asyncio.Event()

    async def JoinWorker(self, request: object, context: Any) -> registry_pb2.JoinWorkerResponse:  # noqa: ANN401, N802
        return registry_pb2.JoinWorkerResponse(model=self._model, lease_us=_LEASE_US)

    async def RenewLease(  # noqa: N802
        self,
        request: registry_pb2.RenewLeaseRequest,
        context: Any,  # noqa: ANN401
    ) -> registry_pb2.RenewLeaseResponse:
        if request.state == worker_pb2.WORKER_STATE_READY:
            self.ready.set()
        return registry_pb2.RenewLeaseResponse()


async def start(artifact: Path, dtype: str, directory: Path) -> tuple[float, float]:
    """Seconds from a worker's start to ready, and seconds of CPU that took."""
    registry = _Registry(artifact)  # type: ignore[abstract]
    server, target = grpc.aio.server(), f"unix:{directory}/registry"
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(registry, server)
    server.add_insecure_port(target)
    await server.start()
    env = {
        "TOKENLOOM_NATS_URL": "nats://127.0.0.1:1",  # what every service is told, and a worker does not use
        "TOKENLOOM_STATE_DIR": str(directory),
        "TOKENLOOM_REGISTRY_TARGET": target,
        "TOKENLOOM_WORKER_LISTEN": f"unix:{directory}/worker",
        "TOKENLOOM_WORKER_DTYPE": dtype,
        "TOKENLOOM_LOG_LEVEL": "ERROR",
    }
    began = time.perf_counter()
    with module("services.worker", env=env) as process:
        async with asyncio.timeout(120):
            await registry.ready.wait()
        took = time.perf_counter() - began, cpu_s(process.pid)
    await server.stop(0)
    return took


def figures() -> list[Figure]:
    """Measure: the least of several starts, as a busy machine delays some."""
    found = []
    with imported("smollm2", SMOLLM2) as models, tempfile.TemporaryDirectory(dir="/tmp") as directory:
        (artifact,) = artifacts.versions(models)
        for dtype in PRECISIONS:
            taken = [asyncio.run(start(artifact, dtype, Path(directory))) for _ in range(ROUNDS)]
            took, cpu = (min(column) for column in zip(*taken, strict=True))
            found.append(Figure(f"{dtype}: worker's start to ready", took, "s", READY_S))
            found.append(Figure(f"{dtype}: CPU that it took", cpu, "s"))
    return found
