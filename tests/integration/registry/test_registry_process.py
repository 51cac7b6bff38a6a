"""The registry as a process of its own, against a real NATS: versions, routes, life."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import grpc
import pytest

from kit import artifacts
from kit.errors import Code
from kit.grpc import service_error
from tests.integration.registry.support import (
    RegistryProcess,
    flip_byte,
    publish,
)
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.registry.v1 import registry_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from kit.bus import Bus


async def route(bus: Bus, name: str) -> events_pb2.RouteRecord:
    entry = await (await bus.kv("routes")).get(name)
    return events_pb2.RouteRecord.FromString(entry.value or b"")


async def test_at_start_every_name_routes_to_its_newest_version(
    registry: RegistryProcess, models: Path, bus: Bus, names: tuple[str, str]
) -> None:
    a, b = names
    old, new = publish(models, a), publish(models, a, b"\1" * 64)
    other = publish(models, b)
    await registry.start()
    listed = (await registry.stub.ListModels(registry_pb2.ListModelsRequest())).models
    assert [(m.model_version, m.current) for m in listed] == [(old, False), (new, True), (other, True)]
    record = await route(bus, a)
    assert (record.model_version, record.context_length, record.family) == (new, 64, "llama")
    assert record.artifact_uri == artifacts.locate(models, new).as_uri()


async def test_a_set_route_outlives_the_registry(
    registry: RegistryProcess, models: Path, bus: Bus, names: tuple[str, str]
) -> None:
    old, new = publish(models, names[0]), publish(models, names[0], b"\1" * 64)
    await registry.start()
    await registry.stub.SetRoute(registry_pb2.SetRouteRequest(model_version=old))
    assert (await route(bus, names[0])).model_version == old
    registry.end(signal.SIGKILL)
    await registry.start()
    assert (await route(bus, names[0])).model_version == old
    listed = (await registry.stub.ListModels(registry_pb2.ListModelsRequest())).models
    assert [(m.model_version, m.current) for m in listed] == [(old, True), (new, False)]


async def test_a_damaged_version_is_refused_at_start_by_file_name_and_others_serve(
    registry: RegistryProcess, models: Path, bus: Bus, worker: str, names: tuple[str, str]
) -> None:
    damaged, sound = publish(models, names[0]), publish(models, names[1])
    flip_byte(models, damaged, "model.safetensors")
    await registry.start()
    (refusal,) = registry.logged("model version refused")
    assert refusal["model_version"] == damaged
    assert "model.safetensors: was altered" in refusal["reason"]
    assert (await registry.join(worker)).model.model_version == sound
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await registry.stub.SetRoute(registry_pb2.SetRouteRequest(model_version=damaged))
    assert service_error(refused.value).code is Code.NOT_FOUND


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
async def test_registering_an_artifact_with_a_flipped_byte_is_refused_by_file_name(
    registry: RegistryProcess, models: Path, names: tuple[str, str], file: str
) -> None:
    await registry.start()
    damaged = publish(models, names[0])
    flip_byte(models, damaged, file)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await registry.stub.RegisterModel(registry_pb2.RegisterModelRequest(model_version=damaged))
    error = service_error(refused.value)
    assert (error.code, error.reason, error.field) == (
        Code.INVALID_ARGUMENT,
        "DAMAGED_ARTIFACT",
        "model_version",
    )
    assert f"{file}: was altered" in error.message
    assert not (await registry.stub.ListModels(registry_pb2.ListModelsRequest())).models


async def test_a_model_imported_later_is_registered_routed_and_assigned(
    registry: RegistryProcess, models: Path, worker: str, names: tuple[str, str]
) -> None:
    await registry.start()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await registry.join(worker)
    assert service_error(refused.value).reason == "NOTHING_DEPLOYED"
    version = publish(models, names[0])
    response = await registry.stub.RegisterModel(registry_pb2.RegisterModelRequest(model_version=version))
    assert response.model.current
    assert (await registry.join(worker)).model == response.model


async def test_only_served_names_are_deployed(
    registry: RegistryProcess, models: Path, worker: str, names: tuple[str, str]
) -> None:
    publish(models, names[0])
    wanted = publish(models, names[1])
    await registry.start(TOKENLOOM_SERVE_MODELS=names[1])
    assigned = {(await registry.join(f"{worker}-{i}")).model.model_version for i in range(3)}
    assert assigned == {wanted}


async def test_a_route_is_kept_but_not_offered_while_its_name_is_not_served(
    registry: RegistryProcess, models: Path, bus: Bus, names: tuple[str, str]
) -> None:
    old, _, other = (
        publish(models, names[0]),
        publish(models, names[0], b"\1" * 64),
        publish(models, names[1]),
    )
    await registry.start()
    await registry.stub.SetRoute(registry_pb2.SetRouteRequest(model_version=old))
    registry.end(signal.SIGTERM)
    await registry.start(TOKENLOOM_SERVE_MODELS=names[1])
    kept, served = await route(bus, names[0]), await route(bus, names[1])
    assert (kept.model_version, kept.unserved) == (old, True)
    assert (served.model_version, served.unserved) == (other, False)
    registry.end(signal.SIGTERM)
    await registry.start()
    again = await route(bus, names[0])
    assert (again.model_version, again.unserved) == (old, False)


async def test_metrics_count_versions_and_workers(
    registry: RegistryProcess, models: Path, worker: str, names: tuple[str, str]
) -> None:
    version = publish(models, names[0])
    await registry.start()
    await registry.join(worker)
    (ready,) = registry.logged("ready")
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(ready["metrics"]).read().decode())
    assert "tokenloom_registry_model_versions 1.0" in text
    assert f'tokenloom_registry_workers{{model_version="{version}",state="loading"}} 1.0' in text


async def test_sigterm_drains_and_exits_clean_with_nothing_on_stdout(registry: RegistryProcess) -> None:
    await registry.start()
    assert registry.end(signal.SIGTERM) == (0, b"")


def test_a_wrong_configuration_is_named_and_exits_2(nats_url: str, scratch: Path) -> None:
    env = {
        "TOKENLOOM_NATS_URL": nats_url,
        "TOKENLOOM_STATE_DIR": str(scratch),
        "TOKENLOOM_MODELS_DIR": str(scratch),
    }
    done = subprocess.run(
        [sys.executable, "-m", "services.registry"],
        env=os.environ | env | {"TOKENLOOM_SERVE_MODELS": "../etc"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "TOKENLOOM_SERVE_MODELS" in done.stderr
