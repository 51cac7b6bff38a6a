"""Two gateways, one scheduler and one NATS, all real, in this process; only the worker is played."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest_asyncio
from prometheus_client import CollectorRegistry

from kit.bus import Bus
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
    furnish,
    health_stub,
    held_port,
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

    import pytest

__all__ = ["KEY", "RIVAL_KEY", "toy_artifact"]
STREAM = {"Accept": "text/event-stream"}


class PacedWorker(PlayedWorker):
    """Answers a step every `pace_s`; token n of a choice is the number of tokens before it."""

    def __init__(self, target: str, model_version: str) -> None:
        super().__init__(target)
        self.model_version = model_version
        self.pace_s = 0.0
        self.runs = 0
        self.held = False  # while a plan waits for `open`

    async def Describe(self, request, context):
        response = await super().Describe(request, context)
        response.model_version = self.model_version
        response.context_length = CONTEXT
        response.vocab_size = 420
        response.page_count = 512
        return response

    async def Run(self, request_iterator, context):
        self.streams += 1
        self.runs += 1
        try:
            async for request in request_iterator:
                self.plans.append(request.plan)
                self.held = not self.open.is_set()
                await self.open.wait()
                self.held = False
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
    settings: dict[str, Any]
    number: int = 0
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
        async with asyncio.timeout(20):
            while not ((lane := await self.lane()) and lane.workers):  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.02)

    async def complete(self) -> None:
        """Start the gateways that are not there."""
        self.gateways = [one for one in self.gateways if not one.task.done()]
        missing = [await self._gateway() for _ in range(2 - len(self.gateways))]
        self.gateways += missing
        for one in missing:
            await self._serving(one)

    async def leave(self) -> None:
        """Stop every gateway."""
        for one in self.gateways:
            one.stop.set()
        await asyncio.wait_for(asyncio.gather(*(one.task for one in self.gateways)), 20)

    async def _gateway(self) -> One:
        self.number += 1
        http, grpc = self.stack.enter_context(held_port()), self.stack.enter_context(held_port())
        config = GatewayConfig(
            nats_url=self.nats_url,
            gateway_id=f"gateway-{self.number}",
            state_dir=self.directory / f"gateway-{self.number}",
            scheduler_target=self.scheduler_target,
            usage_target=f"unix:{self.directory}/nobody.sock",
            grpc_listen=f"127.0.0.1:{grpc}",
            http_listen=f"127.0.0.1:{http}",
            **{"drain_grace_s": 0.2, **self.settings},
        )
        stop, registry = asyncio.Event(), CollectorRegistry()
        task = asyncio.create_task(bootstrap.serve(config, stop, registry))
        return One(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", stop, task)

    async def _serving(self, one: One) -> None:
        async with channel(one.target) as connection, asyncio.timeout(20):
            check = health_stub(connection)
            while await check(b"", wait_for_ready=True) != b"\x08\x01":  # a service tells when it is asked
                if one.task.done():
                    one.task.result()
                await asyncio.sleep(0.02)

    async def lane(self) -> scheduler_pb2.LaneStatus | None:
        """The scheduler's accounting."""
        async with channel(self.scheduler_target) as connection:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(connection)
            lanes = (await stub.Inspect(scheduler_pb2.InspectRequest(), wait_for_ready=True)).lanes
        return lanes[0] if lanes else None

    async def row(self) -> events_pb2.UsageClosed:
        """The one ledger row of all that was said; whoever follows a request opens it too."""
        events = await self.events(closed=1)
        (closed,) = events.closed
        assert {opened.request_id for opened in events.opened} == {closed.opened.request_id}
        return closed

    async def quiet(self) -> None:
        """Return once nothing runs and every row is closed."""
        calm = 0
        async with asyncio.timeout(20):
            while calm < 2:
                lane, usage = await self.lane(), await self._usage()
                busy = lane.running + lane.waiting if lane else 0
                opened = {one.request_id for one in usage.opened}
                done = opened <= {one.opened.request_id for one in usage.closed}
                calm = calm + 1 if done and not busy else 0
                await asyncio.sleep(0.05)

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


@asynccontextmanager
async def started(
    nats_url: str, artifact: Path, directory: Path, *, gateway: Any = None, scheduler: Any = None
) -> AsyncIterator[Pair]:
    """A pair with these settings of its gateways and of its scheduler."""
    bus = await Bus.connect(nats_url, "test")
    await furnish(bus, artifact)
    await bus.ensure_stream("DEPLOYMENT", ["deployment.v1.>"], max_age_s=3600)
    await bus.js.purge_stream("DEPLOYMENT")
    await bus.ensure_kv("idempotency")
    await bus.js.purge_stream("KV_idempotency")
    tokenizer = ModelTokenizer.load(artifact)
    worker = PacedWorker(f"unix:{directory}/w.sock", tokenizer.model_version)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(bus.close)
        pair = Pair(bus, nats_url, directory, tokenizer, worker, stack, gateway or {})
        await worker.start()
        stack.push_async_callback(worker.die)
        pair.start_scheduler(**(scheduler or {}))
        stack.push_async_callback(pair.stop_scheduler)
        await pair.announce()
        stack.push_async_callback(pair.leave)
        await pair.complete()
        yield pair
        worker.open.set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    nats_url: str, toy_artifact: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    async with started(nats_url, toy_artifact, tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def pair(shared: Pair) -> AsyncIterator[Pair]:
    """The module's pair, whole and with nothing of an earlier test in it."""
    shared.worker.pace_s = 0.0
    shared.worker.open.set()
    await shared.complete()
    await shared.quiet()
    for stream in ("USAGE", "KV_idempotency"):
        await shared.bus.js.purge_stream(stream)
    yield shared


def sse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(event, data) of a whole stream."""
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append((fields["event"], json.loads(fields["data"])))
    return events
