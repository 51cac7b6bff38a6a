"""A whole platform for a test module: `tokenloom up` as a user starts it, and as Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tokenloom.up.files import SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent
_START_S = 180.0
_DRAIN_S = 120.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Five processes on a busy machine take their time."""
    for item in items:
        if _HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


@dataclass(frozen=True)
class StackOptions:
    """What a module asks for, with `parametrize("stack", [StackOptions(workers=2)], indirect=True)`.

    `models` are names below `models_dir`, the default model where there are none.
    """

    models: tuple[str, ...] = ()
    gateways: int = 1
    workers: int = 1
    dtype: str = "float32"
    env: dict[str, str] = field(default_factory=dict)
    tls: bool = False


@dataclass(frozen=True)
class Stack:
    """A running platform. The lists hold every gateway, the first one first."""

    data_dir: Path
    http_urls: list[str]
    grpc_targets: list[str]
    api_key: str
    process: subprocess.Popen[str]

    @property
    def http_url(self) -> str:
        return self.http_urls[0]

    @property
    def grpc_target(self) -> str:
        return self.grpc_targets[0]

    @property
    def log(self) -> str:
        """All that the platform has logged so far."""
        return (self.data_dir / "log").read_text(errors="replace")

    def services(self, kind: str) -> list[dict[str, Any]]:
        """Every process of a kind as it is now: name, pid, target and metrics_url."""
        rows = json.loads((self.data_dir / SERVICES).read_text())["services"]
        return [row for row in rows if row["service"] == kind]

    def service(self, kind: str) -> dict[str, Any]:
        """The first process of a kind as it is now."""
        return self.services(kind)[0]


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, models_dir: Path) -> Iterator[Stack]:
    """A platform on fresh data; at the end it must drain to exit code 0."""
    with running(models_dir, getattr(request, "param", StackOptions())) as platform:
        yield platform


@contextlib.contextmanager
def running(models_dir: Path, options: StackOptions, data_dir: Path | None = None) -> Iterator[Stack]:
    """Run a platform until the end of the block, where it must drain; its data is removed then."""
    data_dir = data_dir or Path(tempfile.mkdtemp(prefix="tokenloom-e2e-", dir="/tmp"))
    process = _start(data_dir, models_dir, options)
    try:
        yield _await_ready(process, data_dir)
        process.send_signal(signal.SIGINT)
        code = process.wait(_DRAIN_S)
        assert code == 0, f"`up` ended with {code}\n{_tail(data_dir)}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(data_dir, ignore_errors=True)


def _start(data_dir: Path, models_dir: Path, options: StackOptions) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "tokenloom.cli", "up"),
        *("--data-dir", str(data_dir), "--models-dir", str(models_dir)),
        *("--gateways", str(options.gateways), "--workers", str(options.workers)),
        *(word for name in options.models for word in ("--model", name)),
        *(["--tls"] if options.tls else []),
    ]
    env = {**os.environ, "TOKENLOOM_WORKER_DTYPE": options.dtype, **options.env}
    with (data_dir / "log").open("w") as log:
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True)


def _await_ready(process: subprocess.Popen[str], data_dir: Path) -> Stack:
    overdue = threading.Timer(_START_S, process.kill)
    overdue.start()
    line = process.stdout.readline() if process.stdout else ""
    overdue.cancel()
    if not line.startswith("ready "):
        pytest.fail(f"the platform did not start\n{_tail(data_dir)}")
    known = dict(pair.split("=", 1) for pair in (data_dir / "dev.env").read_text().split())
    return Stack(
        data_dir,
        [value for key, value in known.items() if key.startswith("TOKENLOOM_HTTP_URL")],
        [value for key, value in known.items() if key.startswith("TOKENLOOM_GRPC_TARGET")],
        known["TOKENLOOM_API_KEY"],
        process,
    )


def _tail(data_dir: Path, lines: int = 60) -> str:
    return "\n".join((data_dir / "log").read_text(errors="replace").splitlines()[-lines:])
