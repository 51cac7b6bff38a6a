"""Where figures go: one JSON file a run, with the machine, the versions and the commit they belong to."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "results"
_PACKAGES = ("torch", "grpcio", "uvloop", "aiohttp", "nats-py", "numpy")


def write(name: str, figures: dict[str, Any]) -> Path:
    """Keep the figures of a bench; returns the file."""
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"bench": name, **surroundings(), **figures}, indent=1) + "\n")
    return path


def surroundings() -> dict[str, Any]:
    """What the figures depend on beside the code."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _git("rev-parse", "HEAD"),
        "clean": not _git("status", "--porcelain"),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str | None:
    """None where it is not installed: not every bench needs all of them."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
