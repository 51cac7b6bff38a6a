"""Puts the gateway together and lives its life: connect, serve, drain."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit import grpc as kit_grpc
from kit import lifecycle, log, metrics
from kit.bus import Bus, KvView
from kit.outbox import Outbox
from services.gateway.adapters import idempotency, keys, routes
from services.gateway.adapters.health import Health
from services.gateway.adapters.http.native import NativeFace
from services.gateway.adapters.http.openai import OpenAIFace
from services.gateway.adapters.http.openapi import DocumentFace
from services.gateway.adapters.http.operations import OperationsFace
from services.gateway.adapters.http.server import Face, HttpServer
from services.gateway.adapters.http.usage import UsageFace
from services.gateway.adapters.lane import LaneClient
from services.gateway.adapters.metrics import LiveState, TenantMeters
from services.gateway.adapters.records import SchedulerRecords
from services.gateway.adapters.tokenizers import TokenizerPool
from services.gateway.adapters.usage_client import UsageClient
from services.gateway.adapters.usage_journal import OutboxJournal
from services.gateway.app.front import Front
from services.gateway.app.generations import Generations, Ports, Settings
from services.gateway.app.keyed import Keyed
from services.gateway.core.idempotency import Patience
from services.gateway.servicer import InferenceServicer
from tokenloom.api.inference.v1 import inference_pb2_grpc
from tokenloom.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tokenloom.api.usage.v1.usage_pb2_grpc import UsageServiceStub

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from prometheus_client import CollectorRegistry

    from services.gateway.config import GatewayConfig
    from tokenloom.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub
    from tokenloom.api.usage.v1.usage_pb2_grpc import UsageServiceAsyncStub

SERVICE = "tokenloom.api.inference.v1.InferenceService"
_FLUSH_S = 3.0
_HEALTH_S = 0.1
_log = log.get("gateway")


@dataclass(frozen=True, slots=True)
class Gateway:
    """Everything that lives as long as the process."""

    config: GatewayConfig
    bus: Bus
    outbox: Outbox
    lane: LaneClient
    tokenizers: TokenizerPool
    generations: Generations
    health: Health
    views: list[KvView[Any]]
    grpc: kit_grpc.Server
    http: HttpServer


async def serve(
    config: GatewayConfig, stop: asyncio.Event, registry: CollectorRegistry = metrics.REGISTRY
) -> None:
    """Run the gateway until `stop`."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    outbox = Outbox(config.state_dir / "outbox", max_bytes=config.outbox_max_bytes)
    outbox.open()
    async with AsyncExitStack() as stack:
        stack.callback(outbox.close)
        metrics_server, metrics_url = metrics.serve(config.metrics_listen)
        stack.callback(metrics_server.shutdown)
        bus = await Bus.connect(config.nats_url, "gateway", config.nats_tls)
        stack.push_async_callback(bus.close)
        await bus.ensure_kv(idempotency.BUCKET, config.idempotency_ttl_s)
        lane_bytes = kit_grpc.LANE_MESSAGE_BYTES
        scheduler = kit_grpc.channel(
            config.scheduler_target, role="scheduler", tls=config.tls, max_message_bytes=lane_bytes
        )
        usage = kit_grpc.channel(config.usage_target, role="usage", tls=config.tls)
        gateway = assemble(
            config,
            bus,
            outbox,
            scheduler=SchedulerServiceStub(await stack.enter_async_context(scheduler)),
            usage=UsageServiceStub(await stack.enter_async_context(usage)),
            registry=registry,
        )
        await _live(gateway, stop, metrics_url)


def assemble(
    config: GatewayConfig,
    bus: Bus,
    outbox: Outbox,
    *,
    scheduler: SchedulerServiceAsyncStub,
    usage: UsageServiceAsyncStub,
    registry: CollectorRegistry,
) -> Gateway:
    """Construct and connect every part; nothing runs yet."""
    key_view = KvView(bus, keys.BUCKET, keys.parse_key)
    route_view = KvView(bus, routes.BUCKET, routes.parse_route)
    keyring = keys.KeyRing(key_view, staleness_s=config.keys_staleness_s)
    route_table = routes.RouteTable(route_view)
    lane = LaneClient(
        lambda: scheduler.Lane(wait_for_ready=True), config.gateway_id, resubmit_s=config.resubmit_timeout_s
    )
    records = SchedulerRecords(scheduler)
    tokenizers = TokenizerPool(threads=config.tokenizer_threads, queue=config.tokenizer_queue)
    meters = TenantMeters(registry, config.tenant_label_limit)
    generations = Generations(
        Ports(
            routes=route_table,
            tokenizers=tokenizers,
            lane=lane,
            records=records,
            journal=OutboxJournal(outbox, config.outbox_max_bytes),
            meters=meters,
        ),
        _settings(config),
    )
    registry.register(LiveState(generations, outbox))
    views: list[KvView[Any]] = [key_view, route_view]
    health = Health(
        generations=generations, lane=lane, views=views, keys=keyring, routes=route_table, records=records
    )
    server = kit_grpc.Server(config.grpc_listen, tls=config.public_tls)
    patience = Patience(config.idempotency_claim_timeout_s, config.resubmit_timeout_s)
    front = Front(generations, Keyed(generations, idempotency.KeyStore(bus), patience))
    servicer = InferenceServicer(front, keyring, meters.refused)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server.aio)
    faces: list[Face] = [
        NativeFace(front, keyring),
        OpenAIFace(front, keyring),
        UsageFace(UsageClient(usage), keyring),
        OperationsFace(health, registry),
        DocumentFace(),
    ]
    http = HttpServer(faces, refused=meters.refused, body_limit_bytes=config.body_limit_bytes)
    return Gateway(config, bus, outbox, lane, tokenizers, generations, health, views, server, http)


def _settings(config: GatewayConfig) -> Settings:
    return Settings(
        default_output_tokens=config.default_max_output_tokens,
        reader_timeout_s=config.reader_timeout_s,
        stream_buffer_bytes=config.stream_buffer_bytes,
        resume_lease_s=config.resume_lease_s,
    )


async def _live(gateway: Gateway, stop: asyncio.Event, metrics_url: str) -> None:
    flushed = asyncio.Event()
    publisher = _background("outbox", gateway.outbox.drain(gateway.bus, flushed))
    tasks = [
        *(_background("view", view.run()) for view in gateway.views),
        _background("lane", gateway.lane.run()),
        _background("readers", gateway.generations.watch_readers()),
        _background("renewals", gateway.generations.keep_open()),
    ]
    try:
        await _serve(gateway, stop, tasks, metrics_url)
    finally:
        await gateway.lane.flush(_FLUSH_S)
        flushed.set()
        await asyncio.wait([publisher], timeout=_FLUSH_S)
        await lifecycle.end(*tasks, publisher)
        gateway.tokenizers.close()


async def _serve(
    gateway: Gateway, stop: asyncio.Event, tasks: list[asyncio.Task[Any]], metrics_url: str
) -> None:
    try:
        target = await gateway.grpc.start([SERVICE])
        url = await gateway.http.start(gateway.config.http_listen, gateway.config.public_tls)
        _log.info("listening", grpc=target, http=url, metrics=metrics_url)
        ready = asyncio.Event()
        tasks.append(_background("health", _tell_health(gateway, ready)))
        await ready.wait()
        lifecycle.settle_gc()
        _log.info("ready", grpc=target, http=url)
        await stop.wait()
        await _drain(gateway)
    finally:
        # What ended just now is still being written to its clients.
        await asyncio.gather(gateway.http.stop(), gateway.grpc.stop(_FLUSH_S))


async def _tell_health(gateway: Gateway, ready: asyncio.Event) -> None:
    for view in gateway.views:
        await view.ready()
    await gateway.generations.warm()
    serving: bool | None = None
    while True:
        if (now := gateway.health.unready() is None) is not serving:
            serving = now
            for name in ("", SERVICE):
                await gateway.grpc.set_serving(name, serving)
            if serving:
                ready.set()
        await asyncio.sleep(_HEALTH_S)


async def _drain(gateway: Gateway) -> None:
    _log.info("draining", running=len(gateway.generations.live))
    for name in ("", SERVICE):
        await gateway.grpc.set_serving(name, serving=False)
    await gateway.generations.drain(gateway.config.drain_grace_s)


def _background(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return lifecycle.guard(asyncio.create_task(work, name=name))
