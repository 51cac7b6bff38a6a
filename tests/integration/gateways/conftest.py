"""Two gateways, one scheduler and one NATS, all real, in this process; only the worker is played."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from kit.grpc import channel
from services.gateway import bootstrap
from services.gateway.config import GatewayConfig
from services.gateway.core.tokenizing import ModelTokenizer
from services.scheduler.bootstrap import serve as serve_scheduler
from services.scheduler.config import SchedulerConfig
from tests.integration.gateway.conftest import (
    CONTEXT,
    KEY,
    RIVAL_KEY,
    Events,
    bearer,
    bus,
    free_port,
    health_stub,
    inference,
    toy_artifact,
)
from tests.integration.scheduler.support import PlayedWorker
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kit.bus import Bus

__all__ = ["KEY", "RIVAL_KEY", "bus", "toy_artifact"]
STREAM = {"Accept": "text/event-stream"}


class PacedWorker(PlayedWorker):
    """Answers a step every `pace_s`; token n of a choice is the number of tokens before it."""

    def __init__(self, target: str, model_version: str) -> None:
        super().__init__(target)
        self.model_version = model_version
        self.pace_s = 0.0

    async def Describe(self, request, context):
        response = await super().Describe(request, context)
        response.model_version = self.model_version
        response.context_length = CONTEXT
        response.vocab_size = 420
        response.page_count = 512
        return response

    async def Run(self, request_iterator, context):
        self.streams += 1
        try:
            async for request in request_iterator:
                self.plans.append(request.plan)
                await self.open.wait()
                await asyncio.sleep(self.pace_s)
                yield worker_pb2.RunResponse(result=self._answer(request.plan))
        finally:
            self.streams -= 1


@dataclass
class One:
    """A running gateway."""

    url: str
    target: str
    stop: asyncio.Event
    task: asyncio.Task[None]
    registry: CollectorRegistry

    def http(self, key: str = KEY) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers=bearer(key), timeout=20)

    async def leave(self) -> None:
        """Drain, as after SIGTERM."""
        self.stop.set()
        await asyncio.wait_for(self.task, 20)


@dataclass
class Pair:
    """The platform. `first` and `second` are its gateways."""

    bus: Bus
    nats_url: str
    directory: Path
    tokenizer: ModelTokenizer
    worker: PacedWorker
    stack: AsyncExitStack
    eventually: Any
    gateways: list[One] = field(default_factory=list)
    scheduler: asyncio.Task[None] | None = None
    scheduler_stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first(self) -> One:
        return self.gateways[0]

    @property
    def second(self) -> One:
        return self.gateways[1]

    @property
    def scheduler_target(self) -> str:
        return f"unix:{self.directory}/s.sock"

    def metadata(self, key: str = KEY) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {key}"),)

    async def stub(self, one: One) -> Any:
        return inference(await self.stack.enter_async_context(channel(one.target)))

    def start_scheduler(self, **settings: Any) -> None:
        self.scheduler_stop = asyncio.Event()
        config = SchedulerConfig(
            nats_url=self.nats_url,
            state_dir=self.directory / "scheduler",
            scheduler_listen=self.scheduler_target,
            **{"drain_grace_s": 0.2, "probe_s": 60.0, **settings},
        )
        self.scheduler = asyncio.create_task(
            serve_scheduler(config, self.scheduler_stop, CollectorRegistry())
        )

    async def stop_scheduler(self) -> None:
        self.scheduler_stop.set()
        if self.scheduler is not None:
            await asyncio.wait_for(self.scheduler, 20)
            self.scheduler = None

    async def announce(self) -> None:
        change = events_pb2.WorkerChanged(
            worker_id="w1",
            target=self.worker.target,
            model_version=self.worker.model_version,
            availability="WORKER_AVAILABILITY_READY",
            incarnation=self.worker.incarnation,
        )
        await self.bus.publish("deployment.v1.worker.w1", change.SerializeToString(), msg_id=uuid.uuid4().hex)
        async with channel(self.scheduler_target) as connection, asyncio.timeout(20):
            stub = scheduler_pb2_grpc.SchedulerServiceStub(connection)
            ask = scheduler_pb2.InspectRequest()
            while not (await stub.Inspect(ask, wait_for_ready=True)).lanes:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)

    async def gateway(self, **settings: Any) -> One:
        """Start one more gateway, and return once it serves."""
        number = len(self.gateways) + 1
        http, grpc = free_port(), free_port()
        config = GatewayConfig(
            nats_url=self.nats_url,
            gateway_id=f"gateway-{number}",
            state_dir=self.directory / f"gateway-{number}",
            scheduler_target=self.scheduler_target,
            usage_target=f"unix:{self.directory}/nobody.sock",
            grpc_listen=f"127.0.0.1:{grpc}",
            http_listen=f"127.0.0.1:{http}",
            **{"drain_grace_s": 0.2, **settings},
        )
        stop, registry = asyncio.Event(), CollectorRegistry()
        task = asyncio.create_task(bootstrap.serve(config, stop, registry))
        one = One(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", stop, task, registry)
        self.gateways.append(one)
        async with channel(one.target) as connection, asyncio.timeout(20):
            check = health_stub(connection)
            while await check(b"", wait_for_ready=True) != b"\x08\x01":
                if task.done():
                    task.result()
                await asyncio.sleep(0.02)
        return one

    async def events(self, closed: int) -> Events:
        """All usage events, once so many requests are closed, and a moment later, for one too many."""
        await self._closed(closed)
        await asyncio.sleep(0.1)
        return await self._usage()

    async def _closed(self, closed: int) -> None:
        async with asyncio.timeout(15):
            while len((await self._usage()).closed) < closed:  # noqa: ASYNC110 - a server's
                await asyncio.sleep(0.05)

    async def _usage(self) -> Events:
        found = Events([], [], [])
        info = await self.bus.js.stream_info("USAGE")
        for sequence in range(info.state.first_seq, info.state.last_seq + 1):
            message = await self.bus.js.get_msg("USAGE", sequence)
            if message.subject.startswith("usage.v1.opened."):
                found.opened.append(events_pb2.UsageOpened.FromString(message.data))
            elif message.subject.startswith("usage.v1.closed."):
                found.closed.append(events_pb2.UsageClosed.FromString(message.data))
        return found


@pytest.fixture
async def pair(
    bus: Bus, nats_url: str, toy_artifact: Path, tmp_path: Path, eventually: Any
) -> AsyncIterator[Pair]:
    async with started(bus, nats_url, toy_artifact, tmp_path, eventually) as running:
        yield running


class started:  # noqa: N801 - reads as what it is, a context
    """A pair with these settings of its gateways and its scheduler."""

    def __init__(self, bus, nats_url, toy_artifact, directory, eventually, *, gateway=None, scheduler=None):
        self._gateway, self._scheduler = gateway or {}, scheduler or {}
        tokenizer = ModelTokenizer.load(toy_artifact)
        worker = PacedWorker(f"unix:{directory}/w.sock", tokenizer.model_version)
        stack = AsyncExitStack()
        self.pair = Pair(bus, nats_url, directory, tokenizer, worker, stack, eventually)

    async def __aenter__(self) -> Pair:
        pair = self.pair
        await pair.bus.ensure_stream("DEPLOYMENT", ["deployment.v1.>"], max_age_s=3600)
        await pair.bus.js.purge_stream("DEPLOYMENT")
        await pair.bus.ensure_kv("idempotency")
        await pair.bus.js.purge_stream("KV_idempotency")
        await pair.worker.start()
        pair.start_scheduler(**self._scheduler)
        await pair.announce()
        await asyncio.gather(*(pair.gateway(**self._gateway) for _ in range(2)))
        return pair

    async def __aexit__(self, *exc: object) -> None:
        pair = self.pair
        pair.worker.open.set()
        await pair.stack.aclose()
        for one in pair.gateways:
            one.stop.set()
        await asyncio.wait_for(asyncio.gather(*(one.task for one in pair.gateways)), 20)
        await pair.stop_scheduler()
        await pair.worker.die()


def sse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(event, data) of a whole stream."""
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append((fields["event"], json.loads(fields["data"])))
    return events
