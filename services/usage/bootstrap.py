"""Builds the usage service and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NoReturn

from kit import log, metrics
from kit.bus import Bus, BusError, KvView
from kit.grpc import Server
from kit.lifecycle import end, guard, settle_gc
from services.usage.adapters import keys
from services.usage.adapters import metrics as counted
from services.usage.adapters.database import Database, LedgerUnavailable
from services.usage.adapters.ledger import Ledger
from services.usage.core.keys import Key, digest
from services.usage.core.ledger import SETTLING_S
from services.usage.recorder import Recorder
from services.usage.servicer import UsageServicer
from tokenloom.api.usage.v1 import usage_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from services.usage.config import UsageConfig

SERVICE = "tokenloom.api.usage.v1.UsageService"
CALLERS = {SERVICE: ("gateway", "operator")}
STREAM, SUBJECTS, DURABLE = "USAGE", ("usage.v1.>",), "ledger"
KEEP_EVENTS_S = 14 * 24 * 3600.0
BATCH = 512
SWEEP_S = 5.0
DEV_TENANT = "dev"
_log = log.get("usage")


async def serve(config: UsageConfig, stop: asyncio.Event) -> None:
    """Run the service until `stop`."""
    async with AsyncExitStack() as stack:
        metrics_server, metrics_url = metrics.serve(config.metrics_listen)
        stack.callback(metrics_server.shutdown)
        config.state_dir.mkdir(parents=True, exist_ok=True)
        database = Database(config.ledger_url)
        stack.push_async_callback(database.close)
        await database.migrate()
        ledger = Ledger(database, config.usage_lease_s + SETTLING_S)
        server = Server(config.usage_listen, tls=config.tls, allowed=CALLERS)
        usage_pb2_grpc.add_UsageServiceServicer_to_server(UsageServicer(ledger), server.aio)
        target = await server.start([SERVICE])
        stack.push_async_callback(server.stop, 2.0)
        bus = await Bus.connect(config.nats_url, "usage", config.nats_tls)
        stack.push_async_callback(bus.close)

        publisher = await _publish_keys(config, database, bus, stack)
        await bus.ensure_stream(STREAM, SUBJECTS, KEEP_EVENTS_S)
        _background(stack, bus.consume(STREAM, DURABLE, Recorder(ledger), BATCH), "recorder")
        _background(stack, _sweep(ledger, publisher, bus), "sweep")
        for name in ("", SERVICE):
            await server.set_serving(name, serving=True)
        settle_gc()
        _log.info("ready", target=target, metrics=metrics_url)
        await stop.wait()
        _log.info("stopping")


async def _publish_keys(
    config: UsageConfig, database: Database, bus: Bus, stack: AsyncExitStack
) -> keys.KeyPublisher:
    store = keys.KeyStore(database)
    if config.dev_api_key:
        await store.ensure(DEV_TENANT, digest(config.dev_api_key.get_secret_value()), _now_us())
    await bus.ensure_kv(keys.BUCKET)
    view: KvView[Key] = KvView(bus, keys.BUCKET, keys.decode)
    _background(stack, view.run(), "keys view")
    await view.ready()
    publisher = keys.KeyPublisher(store, bus, view)
    await publisher.reconcile()
    return publisher


async def _sweep(ledger: Ledger, publisher: keys.KeyPublisher, bus: Bus) -> NoReturn:
    while True:
        try:
            pending = await bus.consumer_pending(STREAM, DURABLE)
            counted.CONSUMER_PENDING.set(pending)
            if not pending:  # among what is not recorded yet may be their ends
                counted.UNRESOLVED.set(await ledger.unresolved(_now_us()))
            await publisher.reconcile()
        except (LedgerUnavailable, BusError) as error:
            _log.warning("sweep postponed", error=str(error))
        await asyncio.sleep(SWEEP_S)


def _background(stack: AsyncExitStack, work: Coroutine[object, object, NoReturn], name: str) -> None:
    stack.push_async_callback(end, guard(asyncio.create_task(work, name=name)))


def _now_us() -> int:
    return time.time_ns() // 1000
