"""A whole platform for a bench: one gateway, one worker, SmolLM2."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.models import SMOLLM2, imported
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tokenloom.up.console import Console
from tokenloom.up.files import SERVICES
from tokenloom.up.options import Options
from tokenloom.up.platform import Platform

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODEL = SMOLLM2


class Stand:
    """A running platform as a bench needs it."""

    def __init__(self, platform: Platform, directory: Path) -> None:
        self.http_url = platform.endpoints[0].http_url
        self.grpc_target = platform.endpoints[0].grpc_target
        self.api_key = platform.api_key
        self._directory = directory

    def service(self, kind: str) -> dict[str, Any]:
        """The first process of a kind: pid, target and metrics_url."""
        rows = json.loads((self._directory / SERVICES).read_text())["services"]
        return next(row for row in rows if row["service"] == kind)

    def metric(self, kind: str, name: str) -> float:
        """The sum of a metric's samples, whatever their labels."""
        with urllib.request.urlopen(self.service(kind)["metrics_url"], timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
        return sum(s.value for family in families for s in family.samples if s.name == name)

    def resident_bytes(self, kind: str) -> int:
        """Memory of a process."""
        pages = Path(f"/proc/{self.service(kind)['pid']}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self, kind: str) -> float:
        """Processor time that a process has used."""
        stat = Path(f"/proc/{self.service(kind)['pid']}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    async def owned_pages(self) -> int:
        """Pages that some sequence holds now."""
        async with grpc.aio.insecure_channel(self.service("scheduler")["target"]) as channel:
            stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            response = await stub.Inspect(scheduler_pb2.InspectRequest())
        return sum(lane.owned_pages for lane in response.lanes)


@contextlib.asynccontextmanager
async def running(dtype: str) -> AsyncIterator[Stand]:
    """The platform, from serving to drained."""
    os.environ |= {"TOKENLOOM_WORKER_DTYPE": dtype, "GRPC_VERBOSITY": "NONE"}
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-bench-", dir="/tmp"))
    with imported("smollm2", MODEL) as models, (directory / "log").open("w") as log:
        async with Platform(Options(directory, models_dir=models), Console(log)) as platform:
            yield Stand(platform, directory)
    await asyncio.to_thread(shutil.rmtree, directory)
