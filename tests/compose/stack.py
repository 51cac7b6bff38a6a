"""The compose stack as an operator handles it: build, up, recreate, look inside, down."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "scheduler", "worker", "usage", "registry")
IMAGES = (*SERVICES, "nats")
MODEL = "smollm2-135m-instruct"
# Compose 2 is a plugin of docker, 1.29 a command of its own.
COMMANDS = (("docker", "compose"), ("docker-compose",))
POLL_S = 0.2


class StackError(Exception):
    """The stack did not do what was asked."""


@dataclass(frozen=True)
class Gateway:
    """Where a gateway's container is published."""

    http_url: str
    grpc_target: str


class Stack:
    """One compose project, named apart from an operator's own, with an environment file of its own."""

    def __init__(self, env_file: Path, environment: dict[str, str], project: str = "tokenloom-smoke") -> None:
        self._env_file = env_file
        self._project = project
        self.environment = environment
        self._compose = compose_command()

    def compose(self, *arguments: str, check: bool = True, given: str = "", **environment: str) -> str:
        """Run one compose command with the environment as it is now; returns what it wrote to stdout."""
        lines = {**self.environment, **environment}.items()
        self._env_file.write_text("".join(f"{name}={value}\n" for name, value in lines))
        command = [*self._compose, "--project-name", self._project, "--env-file", str(self._env_file)]
        return _run([*command, *arguments], check=check, given=given)

    def tool(self) -> str:
        """Which Compose this is, in its own words."""
        return _run([*self._compose, "version"]).splitlines()[0]

    def containers(self, service: str, *, stopped: bool = False) -> list[str]:
        """The ids of a service's containers, oldest first."""
        filters = [
            f"label=com.docker.compose.{key}" for key in (f"project={self._project}", f"service={service}")
        ]
        options = [part for one in filters for part in ("--filter", one)]
        found = docker("ps", "--quiet", "--no-trunc", *(["--all"] if stopped else []), *options)
        return list(reversed(found.split()))

    def container(self, service: str) -> str:
        """The id of the service's only container."""
        (found,) = self.containers(service)
        return found

    def gateways(self) -> list[Gateway]:
        """Where each gateway listens, oldest first."""
        found = [_gateway(container) for container in self.containers("gateway")]
        return [gateway for gateway in found if gateway]

    def await_healthy(self, *services: str, within_s: float = 120.0) -> None:
        """Wait until every container of these services is healthy."""
        deadline = time.monotonic() + within_s
        while True:
            health = {one: self._health(one) for one in services}
            if all(states and set(states) == {"healthy"} for states in health.values()):
                return
            if time.monotonic() > deadline:
                raise StackError(f"not healthy within {within_s:.0f} s: {health}")
            time.sleep(POLL_S)

    def await_serving(self, within_s: float = 120.0) -> None:
        """Wait until a gateway says that generations would be answered."""
        deadline = time.monotonic() + within_s
        while not any(_is_well(f"{gateway.http_url}/health") for gateway in self.gateways()):
            if time.monotonic() > deadline:
                raise StackError(f"no gateway serves within {within_s:.0f} s")
            time.sleep(POLL_S)

    def sql(self, statement: str, database: str = "tokenloom") -> list[list[str]]:
        """What the ledger's database answers."""
        answer = self.postgres(f"psql --quiet --no-align --tuples-only {database}", given=statement)
        return [line.split("|") for line in answer.splitlines()]

    def postgres(self, tool: str, given: str = "") -> str:
        """Run one of PostgreSQL's tools beside the database, `given` as its input."""
        login = 'PGHOST=127.0.0.1 PGUSER=tokenloom PGPASSWORD="$POSTGRES_PASSWORD"'
        return self.compose("exec", "-T", "postgres", "sh", "-c", f"{login} {tool}", given=given)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers."""
        answer = self.compose(
            *("exec", "-T", "prometheus", "promtool", "query", "instant", "--format", "json"),
            *("http://127.0.0.1:9090", expression),
        )
        result: list[dict[str, Any]] = json.loads(answer)
        return result

    def _health(self, service: str) -> list[str]:
        found = self.containers(service)
        if not found:
            return []
        return docker("inspect", "--format", "{{.State.Health.Status}}", *found).split()


def docker(*arguments: str) -> str:
    """Run one docker command; returns what it wrote to stdout."""
    return _run(["docker", *arguments])


def _gateway(container: str) -> Gateway | None:
    # One that is just starting or ending has no ports.
    ports = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Ports}}", container))
    published = [ports.get(port) for port in ("8080/tcp", "9000/tcp")]
    if not all(published):
        return None
    http, grpc = (f"127.0.0.1:{bindings[0]['HostPort']}" for bindings in published)
    return Gateway(f"http://{http}", grpc)


def _is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def compose_command() -> list[str]:
    """The command that COMPOSE names, else the first of COMMANDS that answers."""
    if given := shlex.split(os.environ.get("COMPOSE", "")):
        return given
    for command in COMMANDS:
        if answers(command):
            return list(command)
    raise StackError("neither `docker compose` nor `docker-compose` answers")


def answers(command: Sequence[str]) -> bool:
    """Whether a Compose can be called so."""
    try:
        return subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _run(command: list[str], *, check: bool = True, given: str = "") -> str:
    # What an operator has set for a stack of their own must not reach this one.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOKENLOOM", "COMPOSE"))
    }
    done = subprocess.run(
        command, cwd=ROOT, env=inherited, input=given, capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        raise StackError(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}".strip()
        )
    return done.stdout
