"""NATS and PostgreSQL as the compose stack runs them: its images, its configuration, in containers."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokenloom.up.nats import USERS
from tokenloom.up.ports import Ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testcontainers.core.container import DockerContainer

ROOT = Path(__file__).parents[3]
PASSWORDS = {user: f"secret{user}" for user in USERS}


class Server:
    """A server in a container, at the same port of this host however often it restarts."""

    def __init__(self, container: DockerContainer, port: int, ready: str) -> None:
        self._container = container
        self._ready = ready
        self.port = port

    def restart(self, away_s: float = 0.0) -> None:
        """Stop it, leave it away for a while, and start it with its data."""
        inner = self._container.get_wrapped_container()
        inner.stop(timeout=10)
        time.sleep(away_s)
        started = time.time()
        inner.start()
        self.await_ready(started)

    def await_ready(self, since: float) -> None:
        """Wait until it says that it is ready."""
        deadline = time.monotonic() + 30
        while self._ready.encode() not in self._container.get_wrapped_container().logs(since=int(since)):
            assert time.monotonic() < deadline, "the container did not become ready"
            time.sleep(0.1)


@pytest.fixture(scope="session")
def engine() -> None:
    """Skips where no Docker engine answers."""
    if shutil.which("docker") is None:
        pytest.skip("needs Docker: there is no docker command")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs Docker: `docker info` fails, no engine answers")


def container(image: str) -> DockerContainer:
    """A container of an image that is here or can be pulled."""
    import docker  # noqa: PLC0415 - nothing of this is needed where the tests are skipped
    from testcontainers.core.config import testcontainers_config  # noqa: PLC0415
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415

    # The reaper is one more image to pull; fixtures stop what they start.
    testcontainers_config.ryuk_disabled = True
    images = docker.from_env().images
    try:
        images.get(image)
    except docker.errors.ImageNotFound:
        try:
            images.pull(image)
        except docker.errors.APIError as error:
            pytest.skip(f"needs {image}: it is not here and cannot be pulled ({error})")
    return DockerContainer(image)


@pytest.fixture(scope="module")
def nats_container(engine: None) -> Iterator[Server]:
    dockerfile = (ROOT / "deploy" / "nats" / "Dockerfile").read_text()
    port, since = Ports().pick(), time.time()
    server = container(re.search(r"NATS_IMAGE=(\S+)", dockerfile)[1]).with_bind_ports(4222, port)
    server.with_volume_mapping(ROOT / "deploy" / "nats" / "nats.conf", "/etc/nats/tokenloom.conf", "ro")
    server.with_command("-c /etc/nats/tokenloom.conf")
    for user, password in PASSWORDS.items():
        server.with_env(f"TOKENLOOM_NATS_PASSWORD_{user.upper()}", password)
    with server:
        running = Server(server, port, "Server is ready")
        running.await_ready(since)
        yield running


@pytest.fixture(scope="module")
def postgres_container(engine: None) -> Iterator[Server]:
    image = re.search(r"image: (postgres:\S+)", (ROOT / "docker-compose.yml").read_text())[1]
    port, since = Ports().pick(), time.time()
    server = container(image).with_bind_ports(5432, port)
    for name, value in (("USER", "tokenloom"), ("DB", "tokenloom"), ("PASSWORD", "secret")):
        server.with_env(f"POSTGRES_{name}", value)
    with server:
        running = Server(server, port, 'listening on IPv4 address "0.0.0.0"')
        running.await_ready(since)
        yield running


@pytest.fixture
def nats_urls(nats_container: Server) -> dict[str, str]:
    """Where each service connects."""
    return {
        user: f"nats://{user}:{password}@127.0.0.1:{nats_container.port}"
        for user, password in PASSWORDS.items()
    }


@pytest.fixture
def ledger_url(postgres_container: Server) -> str:
    """Where the usage service connects."""
    return f"postgresql+asyncpg://tokenloom:secret@127.0.0.1:{postgres_container.port}/tokenloom"
