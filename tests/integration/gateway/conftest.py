"""A whole gateway per test: real NATS, real outbox, real sockets, a scripted scheduler."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from kit import artifacts
from kit.grpc import Server, channel
from services.gateway import bootstrap
from services.gateway.config import GatewayConfig
from services.gateway.core.tokenizing import ModelTokenizer
from tests.integration.gateway.peers import EOS, STOP, Job, Ledger, ScriptedScheduler
from tests.unit.gateway_core.toy import BOS, CHATML, byte_level_json
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.inference.v1 import inference_pb2_grpc
from tokenloom.api.usage.v1 import usage_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from kit.bus import Bus

KEY, RIVAL_KEY, REVOKED_KEY = "key-of-acme", "key-of-rival", "key-revoked"
CONTEXT = 256
_NO_LANE = "no scheduler is reachable"


def bearer(key: str = KEY) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@dataclass
class Events:
    """Usage events as JetStream stored them."""

    opened: list[events_pb2.UsageOpened]
    closed: list[events_pb2.UsageClosed]
    renewed: list[events_pb2.UsageRenewed]

    def row(self) -> events_pb2.UsageClosed:
        assert len(self.opened) == 1, self.opened
        assert len(self.closed) == 1, self.closed
        return self.closed[0]


@dataclass
class Platform:
    """A running gateway and its neighbours."""

    scheduler: ScriptedScheduler
    ledger: Ledger
    bus: Bus
    url: str
    target: str
    tokenizer: ModelTokenizer
    stop: asyncio.Event
    task: asyncio.Task[None]
    registry: CollectorRegistry
    eventually: Any

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode_prompt(text)

    def says(self, text: str, *, logprobs: bool = False, reason: int = STOP):
        """A script: accept, then one step per token of `text`, then the end."""
        ids = self.ids(text)

        async def script(job: Job) -> None:
            job.accept()
            for token_id in [*ids, EOS] if reason == STOP else ids:
                for choice in range(job.submit.n):
                    job.step((choice, token_id), logprobs=logprobs)
                await asyncio.sleep(0)
            job.end(reason)

        return script

    @property
    def model_version(self) -> str:
        return self.tokenizer.model_version

    def http(self, key: str | None = KEY) -> httpx.AsyncClient:
        headers = bearer(key) if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=10)

    def grpc(self) -> Any:
        return channel(self.target)

    def metadata(self, key: str = KEY) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {key}"),)

    async def events(self, closed: int = 1) -> Events:
        """Every usage event, once `closed` requests are closed and all is published."""
        found = Events([], [], [])

        async def published() -> bool:
            found.opened.clear()
            found.closed.clear()
            found.renewed.clear()
            info = await self.bus.js.stream_info("USAGE")
            for sequence in range(info.state.first_seq, info.state.last_seq + 1):
                message = await self.bus.js.get_msg("USAGE", sequence)
                if message.subject.startswith("usage.v1.opened."):
                    found.opened.append(events_pb2.UsageOpened.FromString(message.data))
                elif message.subject == "usage.v1.renewed":
                    found.renewed.append(events_pb2.UsageRenewed.FromString(message.data))
                else:
                    found.closed.append(events_pb2.UsageClosed.FromString(message.data))
            return len(found.closed) >= closed

        async with asyncio.timeout(10):
            while not await published():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found

    async def told(self, job: Job, event: str = "accepted", start: int = 0) -> None:
        """Return once callers of the job are told this: who follows it is told all from `start` on."""
        path = f"/v1/generations/gen-{job.id:016x}?from={start}"
        async with self.http() as client, client.stream("GET", path) as response:
            async for line in response.aiter_lines():
                if line == f"event: {event}":
                    return
        raise AssertionError(f"it ended without {event}")

    async def welcomed(self) -> None:
        """Return once the scheduler has welcomed the gateway."""
        async with self.http() as client, asyncio.timeout(10):
            while (await client.get("/health")).json().get("reason") == _NO_LANE:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture(scope="session")
def toy_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    (directory / artifacts.TOKENIZER).write_text(byte_level_json())
    (directory / artifacts.CHAT_TEMPLATE).write_text(CHATML)
    (directory / artifacts.CONFIG).write_text(json.dumps({"model_type": "llama"}))
    (directory / artifacts.WEIGHTS).write_bytes(b"no weights")
    meta = artifacts.ManifestMeta(
        name="toy",
        family="llama",
        context_length=CONTEXT,
        source="test",
        licence="none",
        eos_token_ids=(EOS,),
        bos_token_id=BOS,
    )
    artifacts.write_manifest(directory, meta)
    return directory


@pytest.fixture
async def bus(bus: Bus, toy_artifact: Path) -> Bus:
    """The streams and buckets as the other services leave them."""
    await furnish(bus, toy_artifact)
    return bus


async def furnish(bus: Bus, toy_artifact: Path) -> None:
    """Write the keys, the route and an empty ledger stream."""
    await bus.ensure_stream("USAGE", ["usage.v1.>"], max_age_s=3600)
    await bus.js.purge_stream("USAGE")
    keys, routes = await bus.ensure_kv("keys"), await bus.ensure_kv("routes")
    for key, record in {
        KEY: events_pb2.KeyRecord(tenant_id="acme"),
        RIVAL_KEY: events_pb2.KeyRecord(tenant_id="rival"),
        REVOKED_KEY: events_pb2.KeyRecord(tenant_id="acme", revoked=True),
    }.items():
        await keys.put(hashlib.sha256(key.encode()).hexdigest(), record.SerializeToString())
    manifest = artifacts.load_manifest(toy_artifact)
    route = events_pb2.RouteRecord(
        name="toy",
        model_version=manifest.model_version,
        artifact_uri=toy_artifact.as_uri(),
        context_length=manifest.context_length,
        family=manifest.family,
        tokenizer_version=manifest.tokenizer_version,
    )
    await routes.put("toy", route.SerializeToString())


@pytest.fixture
async def launch(bus: Bus, nats_url: str, toy_artifact: Path, tmp_path: Path, eventually: Any):
    """`async with launch(**settings) as platform`: a gateway that says it is ready."""

    @asynccontextmanager
    async def run(lease_us: int = 3_000_000, **settings: Any) -> AsyncIterator[Platform]:
        with held_port() as grpc_port, held_port() as http_port:
            async with running(grpc_port, http_port, lease_us, **settings) as platform:
                yield platform

    @asynccontextmanager
    async def running(
        grpc_port: int, http_port: int, lease_us: int, **settings: Any
    ) -> AsyncIterator[Platform]:
        scheduler, ledger = ScriptedScheduler(lease_us), Ledger()
        await scheduler.start()
        usage = Server("127.0.0.1:0")
        usage_pb2_grpc.add_UsageServiceServicer_to_server(ledger, usage.aio)
        config = GatewayConfig(
            nats_url=nats_url,
            state_dir=tmp_path / "state",
            scheduler_target=scheduler.target,
            usage_target=await usage.start([]),
            grpc_listen=f"127.0.0.1:{grpc_port}",
            http_listen=f"127.0.0.1:{http_port}",
            **settings,
        )
        stop, registry = asyncio.Event(), CollectorRegistry()
        task = asyncio.create_task(bootstrap.serve(config, stop, registry))
        platform = Platform(
            scheduler,
            ledger,
            bus,
            f"http://127.0.0.1:{http_port}",
            f"127.0.0.1:{grpc_port}",
            ModelTokenizer.load(toy_artifact),
            stop,
            task,
            registry,
            eventually,
        )
        scheduler.lanes = []
        try:
            await serving(platform)
            yield platform
        finally:
            stop.set()
            await asyncio.wait_for(task, 15)
            await scheduler.stop()
            await usage.stop(0)

    return run


@pytest.fixture
async def platform(launch: Any) -> AsyncIterator[Platform]:
    async with launch() as running:
        yield running


async def serving(platform: Platform) -> None:
    """Return once a model can be listed: keys, routes and lane are there."""
    async with platform.grpc() as connection, asyncio.timeout(10):
        stub = health_stub(connection)
        while True:
            if platform.task.done():
                platform.task.result()
            response = await stub(b"", wait_for_ready=True)
            if response == b"\x08\x01":
                return
            await asyncio.sleep(0.01)


def health_stub(connection: Any) -> Any:
    return connection.unary_unary("/grpc.health.v1.Health/Check")


@contextmanager
def held_port() -> Iterator[int]:
    """A port that nobody else is given; a server may listen on it, for its holder does not."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def inference(connection: Any) -> Any:
    return inference_pb2_grpc.InferenceServiceStub(connection)
