"""The platform with small real services: the order of its drain, one owner per directory, private files."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kit.bus import Bus, BusError
from tokenloom.up import files, platform
from tokenloom.up.console import Console
from tokenloom.up.layout import Layout, environment
from tokenloom.up.options import Options, Policy, UpError
from tokenloom.up.platform import Platform
from tokenloom.up.ports import Ports

SERVICE = str(Path(__file__).with_name("service.py"))


def exists(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A platform whose services are small, on a real NATS."""
    original = Layout.specs

    def specs(layout, nats_port):
        return [
            replace(spec, argv=(sys.executable, SERVICE, spec.target, spec.name, str(tmp_path / "diary")))
            for spec in original(layout, nats_port)
        ]

    async def nothing(*_):
        pass

    monkeypatch.setattr(Layout, "specs", specs)
    monkeypatch.setattr(platform, "ensure_model", nothing)
    monkeypatch.setattr(Platform, "_await_workers", nothing)
    return Options(tmp_path / "data", gateways=2)


async def test_services_drain_in_order_and_none_is_left(small, tmp_path):
    output = io.StringIO()
    async with Platform(small, Console(output)) as running:
        services = json.loads((small.data_dir / files.SERVICES).read_text())["services"]
        assert len(running.endpoints) == 2
    assert [line.split()[0] for line in (tmp_path / "diary").read_text().splitlines()][-4:] == [
        "scheduler", "worker-1", "registry", "usage",
    ]  # fmt: skip
    assert {line.split()[0] for line in (tmp_path / "diary").read_text().splitlines()[:2]} == {
        "gateway-1",
        "gateway-2",
    }
    assert [row["service"] for row in services].count("gateway") == 2
    assert not [row for row in services if exists(row["pid"])]
    assert not (small.data_dir / files.DEV_ENV).exists()


async def test_dev_env_names_the_first_gateway_first_and_is_private(small):
    async with Platform(small, Console(io.StringIO())) as running:
        path = small.data_dir / files.DEV_ENV
        first, second = running.endpoints
        assert path.read_text().splitlines() == [
            f"TOKENLOOM_HTTP_URL={first.http_url}",
            f"TOKENLOOM_GRPC_TARGET={first.grpc_target}",
            f"TOKENLOOM_API_KEY={running.api_key}",
            f"TOKENLOOM_HTTP_URL_2={second.http_url}",
            f"TOKENLOOM_GRPC_TARGET_2={second.grpc_target}",
            f"TOKENLOOM_API_KEY_2={running.api_key}",
        ]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((small.data_dir / "nats" / "nats.conf").stat().st_mode) == 0o600


async def test_services_json_follows_a_restart(small, eventually):
    def worker():
        rows = json.loads((small.data_dir / files.SERVICES).read_text())["services"]
        return next(row for row in rows if row["service"] == "worker")

    async with Platform(small, Console(io.StringIO())):
        before = worker()
        os.kill(before["pid"], signal.SIGKILL)
        await eventually(lambda: worker()["pid"] != before["pid"])
        assert {**worker(), "pid": 0} == {**before, "pid": 0}


async def test_given_nats_and_database_are_used(small, nats_url):
    options = replace(small, nats_url=nats_url, database_url="postgresql+asyncpg://somewhere/db")
    async with Platform(options, Console(io.StringIO())) as running:
        specs = {keeper.spec.name: keeper.spec for keeper in running._keepers}
        assert "nats" not in specs
        assert {spec.env["TOKENLOOM_NATS_URL"] for spec in specs.values()} == {nats_url}
        assert specs["usage"].env["TOKENLOOM_DATABASE_URL"] == options.database_url
        assert "TOKENLOOM_DATABASE_URL" not in specs["gateway-1"].env


def test_each_service_gets_its_own_nats_user_and_nobody_else_s_secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENLOOM_DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("TOKENLOOM_API_KEY", "secret")
    secrets = files.load_secrets(tmp_path)
    for spec in Layout(Options(tmp_path), secrets, tmp_path).specs(4222):
        assert spec.env["TOKENLOOM_NATS_URL"].startswith(
            f"nats://{spec.service}:{secrets.nats[spec.service]}@"
        )
        others = [password for user, password in secrets.nats.items() if user != spec.service]
        assert not {"postgresql://secret", "secret", *others} & set(spec.env.values())
        assert ("TOKENLOOM_DEV_API_KEY" in spec.env) == (spec.service == "usage")


def test_each_model_gets_workers_of_its_own(tmp_path):
    options = Options(tmp_path, served=("a", "b", "a"), workers=2)
    specs = Layout(options, files.load_secrets(tmp_path), tmp_path).specs(4222)
    workers = {spec.name: spec.env["TOKENLOOM_WORKER_MODEL"] for spec in specs if spec.service == "worker"}
    assert workers == {"worker-1": "a", "worker-2": "a", "worker-3": "b", "worker-4": "b"}


def test_sockets_of_a_killed_platform_are_removed_by_the_next_one(tmp_path):
    first = files.make_sockets(tmp_path)
    second = files.make_sockets(tmp_path)
    assert not first.exists()
    assert (tmp_path / "run").readlink() == second
    assert stat.S_IMODE(second.stat().st_mode) == 0o700
    files.remove_sockets(tmp_path)
    assert not second.exists()


def test_socket_paths_stay_within_the_limit_of_the_system(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    sockets = files.make_sockets(tmp_path)
    files.remove_sockets(tmp_path)
    assert len(f"{sockets}/worker-32.sock") < 108
    assert list(deep.iterdir()) == []


def test_secrets_are_kept_private_and_stay_the_same(tmp_path):
    first = files.load_secrets(tmp_path)
    assert files.load_secrets(tmp_path) == first
    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ['{"api', "[" * 100_000, "\xff", "[]", '{"nats": []}'])
def test_damaged_secrets_are_neither_used_nor_replaced(tmp_path, damage):
    path = tmp_path / "secrets.json"
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(UpError, match="is damaged"):
        files.load_secrets(tmp_path)
    assert path.read_bytes() == damage.encode("latin-1")


def test_a_second_up_in_the_same_directory_is_refused(tmp_path):
    command = [sys.executable, "-m", "tokenloom.cli", "up", "--data-dir", str(tmp_path)]
    with files.exclusive(tmp_path):
        second = subprocess.run(
            command, capture_output=True, text=True, env=environment(), check=False, timeout=60
        )
    assert second.returncode == 1
    assert f"{tmp_path} is in use by another `tokenloom up` (process {os.getpid()})" in second.stderr
    with files.exclusive(tmp_path):
        pass


@pytest.mark.parametrize("verb", ["up", "demo"])
def test_a_data_directory_that_cannot_be_is_one_clear_line(tmp_path, verb):
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "tokenloom.cli", verb, "--data-dir", str(tmp_path / "file" / "data")]
    refused = subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False, timeout=60
    )
    assert refused.returncode == 1
    assert refused.stderr == (
        f"Error: {tmp_path}/file/data cannot be used: Not a directory; choose another --data-dir\n"
    )


def test_a_port_in_use_is_said_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "tokenloom.cli",
            "up",
            "--data-dir",
            str(tmp_path),
            "--http-port",
            str(port),
        ]
        refused = subprocess.run(
            command, capture_output=True, text=True, env=environment(), check=False, timeout=60
        )
    assert refused.returncode == 1
    assert refused.stderr == f"Error: port {port} cannot be used: Address already in use; choose another\n"
    assert not (tmp_path / "nats").exists()


def test_one_port_cannot_serve_two_purposes():
    ports = Ports()
    port = ports.pick()
    with pytest.raises(UpError, match="asked for twice"):
        ports.pick(port)


def test_a_model_that_was_never_imported_is_refused_with_the_way_to_import_it(tmp_path):
    command = [sys.executable, "-m", "tokenloom.cli", "up", "--data-dir", str(tmp_path), "--model", "nobody"]
    refused = subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False, timeout=60
    )
    assert refused.returncode == 1
    assert "tokenloom models import SOURCE --name nobody" in refused.stderr


async def test_a_nats_that_can_store_nothing_more_is_restarted(small, eventually):
    """It does not recover by itself once there is space again, and greets its callers meanwhile."""
    output = io.StringIO()
    policy = Policy(probe_s=0.1, unserving_s=0.5, backoff_s=0.1)
    async with Platform(small, Console(output), policy) as running:
        (nats,) = (keeper for keeper in running._keepers if keeper.spec.name == "nats")
        before = nats.child.pid
        passwords = json.loads((small.data_dir / "secrets.json").read_text())["nats"]
        bus = await Bus.connect(f"nats://usage:{passwords['usage']}@{nats.spec.target}", "test")
        await bus.ensure_kv("keys")
        limits = resource.prlimit(before, resource.RLIMIT_FSIZE)
        resource.prlimit(before, resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        with pytest.raises(BusError):
            await bus.kv_put("keys", "large", bytes(1 << 17))
        await eventually(lambda: nats.child.pid != before)
        await eventually(lambda: bus.connected and bus.generation > 1)
        await bus.kv_put("keys", "last", b"stored")
        await bus.close()
    assert "nats served and then did not" in output.getvalue()
