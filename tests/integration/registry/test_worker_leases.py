"""Workers' leases with a registry process and a real NATS, and the events the scheduler would see."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kit.errors import Code
from kit.grpc import service_error
from tests.integration.registry.support import (
    DRAINING,
    LEASE_S,
    RegistryProcess,
    WorkerEvents,
    publish,
)
from tokenloom.api.registry.v1 import registry_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NatsServer


@pytest.fixture
async def joined(
    registry: RegistryProcess, models: Path, worker: str, names: tuple[str, str]
) -> registry_pb2.JoinWorkerResponse:
    """A registry with one model, and a worker that joined it."""
    publish(models, names[0])
    await registry.start()
    return await registry.join(worker)


async def test_a_worker_is_announced_ready_then_gone_when_its_lease_runs_out(
    registry: RegistryProcess,
    joined: registry_pb2.JoinWorkerResponse,
    worker: str,
    events: WorkerEvents,
    eventually: Any,
) -> None:
    assert joined.lease_us == LEASE_S * 1e6
    renewed_at = time.monotonic()
    await registry.renew(worker)
    await eventually(lambda: events.kinds == [("READY", "i1")])
    assert (events.seen[0].model_version, events.seen[0].target) == (
        joined.model.model_version,
        f"{worker}:1",
    )
    await eventually(lambda: events.kinds == [("READY", "i1"), ("GONE", "i1")])
    assert time.monotonic() - renewed_at >= LEASE_S
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await registry.renew(worker)
    assert service_error(refused.value).code is Code.NOT_FOUND


@pytest.mark.usefixtures("joined")
async def test_a_killed_registry_comes_back_without_disturbing_its_workers(
    registry: RegistryProcess, worker: str, events: WorkerEvents, eventually: Any
) -> None:
    await registry.renew(worker)
    await eventually(lambda: events.kinds == [("READY", "i1")])
    registry.end(signal.SIGKILL)
    await asyncio.sleep(LEASE_S)
    await registry.start()
    await registry.renew(worker)
    await registry.join(worker)
    await registry.renew(worker, DRAINING)
    await eventually(lambda: len(events.seen) > 1)
    assert events.kinds == [("READY", "i1"), ("DRAINING", "i1")]


@pytest.mark.usefixtures("joined")
async def test_a_worker_that_died_while_the_registry_was_away_is_announced_gone(
    registry: RegistryProcess, worker: str, events: WorkerEvents, eventually: Any
) -> None:
    await registry.renew(worker)
    await eventually(lambda: events.kinds == [("READY", "i1")])
    registry.end(signal.SIGKILL)
    await registry.start()
    await eventually(lambda: events.kinds == [("READY", "i1"), ("GONE", "i1")])


async def test_workers_kept_for_a_model_get_it_whatever_others_hold(
    registry: RegistryProcess, models: Path, worker: str, names: tuple[str, str]
) -> None:
    """Another model without a worker does not draw them away."""
    versions = [publish(models, name) for name in names]
    await registry.start()
    for number in (1, 2):
        joined = await registry.join(f"{worker}-{number}", model=names[0])
        assert joined.model.model_version == versions[0]
    joined = await registry.join(f"{worker}-3")
    assert joined.model.model_version != versions[0]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await registry.join(f"{worker}-4", model="unknown")
    assert service_error(refused.value).reason == "NOTHING_DEPLOYED"


@pytest.mark.usefixtures("joined")
async def test_a_worker_that_comes_back_soon_after_gone_is_announced_again(
    registry: RegistryProcess, worker: str, events: WorkerEvents, eventually: Any
) -> None:
    """The same change twice is two events: JetStream's duplicate window must not eat the second."""
    await registry.renew(worker)
    await eventually(lambda: len(events.seen) == 2)
    await registry.join(worker)
    await registry.renew(worker)
    await eventually(lambda: events.kinds == [("READY", "i1"), ("GONE", "i1"), ("READY", "i1")])


@pytest.mark.usefixtures("joined")
async def test_leases_go_on_while_nats_is_away_and_the_last_change_arrives_once(
    registry: RegistryProcess,
    worker: str,
    nats_server: NatsServer,
    events: WorkerEvents,
    eventually: Any,
) -> None:
    nats_server.kill()
    await registry.renew(worker)
    await registry.join(worker, "i2")

    async def keep() -> None:
        while True:
            await registry.renew(worker, incarnation="i2")
            await asyncio.sleep(LEASE_S / 10)

    # The worker renews throughout: whoever follows the events may take seconds to find NATS again.
    keeping = asyncio.create_task(keep())
    await asyncio.sleep(LEASE_S)
    await asyncio.to_thread(nats_server.start)
    await eventually(lambda: ("READY", "i2") in events.kinds, 20)
    await asyncio.sleep(LEASE_S / 2)
    keeping.cancel()
    assert events.kinds.count(("READY", "i2")) == 1
    assert ("GONE", "i2") not in events.kinds


BAD_JOINS = [
    ({"worker_id": "a.b", "target": "t", "incarnation": "i"}, "worker_id"),
    ({"worker_id": "", "target": "t", "incarnation": "i"}, "worker_id"),
    ({"worker_id": "w", "target": "", "incarnation": "i"}, "target"),
    ({"worker_id": "w", "target": "t", "incarnation": "x" * 200}, "incarnation"),
]


async def test_a_bad_join_is_refused_by_field(registry: RegistryProcess) -> None:
    await registry.start()
    for request_fields, field in BAD_JOINS:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await registry.stub.JoinWorker(registry_pb2.JoinWorkerRequest(**request_fields))
        assert service_error(refused.value).field == field, request_fields
