"""Finding and building the shared library; `python -m` builds it ahead of its first use.

A library is named after the sources, the flags and the instructions that it needs, so one that is found fits.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "native"
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-pthread", "-w")
_COMPILERS = ("c++", "g++", "clang++")
_BUILD_S = 300
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILE_DATA = 158, 0x1023, 18


class NativeError(Exception):
    """There is no native library on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of processor: the instructions it must have, and the compiler's flags for them."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]


_AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_AVX512_BF16 = _AVX512 | {"avx512_bf16", "avx512_vnni"}
_AVX512_BF16_FLAGS = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni")
# The best first.
_X86 = (
    Target(
        "amx",
        _AVX512_BF16 | {"amx_tile", "amx_bf16", "amx_int8"},
        (*_AVX512_BF16_FLAGS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    ),
    Target("avx512-bf16-vnni", _AVX512_BF16, _AVX512_BF16_FLAGS),
    Target("avx512-vnni", _AVX512 | {"avx512_vnni"}, ("-march=x86-64-v4", "-mavx512vnni")),
    Target("avx2", _AVX2, ("-march=x86-64-v3",)),
)


def targets() -> tuple[Target, ...]:
    """Kinds of processor of this architecture that are told apart, the best first."""
    machine = platform.machine().lower()
    return (*(_X86 if machine in ("x86_64", "amd64") else ()), Target(machine, frozenset(), ()))


def target() -> Target:
    """The best kind that this processor is."""
    return fitting()[0]


def library(kind: Target | None = None) -> Path:
    """Find the library for a kind of processor, or build it; raises `NativeError`.

    By default it is for the best kind that this processor is and that the compiler knows.
    """
    if kind is not None:
        return _found(kind)
    best = target()
    try:
        return _found(best)
    except NativeError:
        for other in fitting():
            if other != best:
                with contextlib.suppress(NativeError):
                    return _found(other)
        raise


def fitting() -> list[Target]:
    """The kinds that this processor is, the best first."""
    has = _instructions()
    return [kind for kind in targets() if kind.needs <= has]


def _found(kind: Target) -> Path:
    name = f"loom-{kind.name}-{_digest(kind)}.so"
    for directory in _directories():
        if (directory / name).is_file():
            return directory / name
    return _build(kind, name)


def _build(kind: Target, name: str) -> Path:
    compiler = next((path for each in _COMPILERS if (path := shutil.which(each))), None)
    if compiler is None:
        raise NativeError("no C++ compiler is installed")
    directory = next((each for each in _directories() if _writable(each)), None)
    if directory is None:
        raise NativeError(f"none of {', '.join(map(str, _directories()))} can be written")
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        made = Path(scratch) / name
        command = (compiler, *_FLAGS, *kind.flags, "-o", str(made), *map(str, sorted(SOURCES.glob("*.cpp"))))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeError(f"{compiler} did not run: {error}") from error
        if done.returncode:
            raise NativeError(f"{compiler} failed: {_first_error(done.stderr)}")
        # Whole or not at all, whoever else builds it meanwhile.
        made.replace(directory / name)
    return directory / name


def _first_error(output: str) -> str:
    lines = output.strip().splitlines() or ["it says nothing"]
    return next((line for line in lines if "error" in line), lines[0])


@cache
def _digest(kind: Target) -> str:
    digest = hashlib.sha256(repr((_FLAGS, kind.flags)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:12]


def _directories() -> tuple[Path, ...]:
    """Where libraries are kept: beside the packages of this Python, or in the user's cache."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(sys.prefix) / "lib" / "tokenloom", cached / "tokenloom" / "native"


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)


def _instructions() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    found = frozenset(flags.partition(":")[2].split())
    return found if "amx_tile" not in found or _tiles_granted() else found - {"amx_tile"}


def _tiles_granted() -> bool:
    """Ask the kernel for AMX's tiles, which a process may use only then."""
    refused: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILE_DATA)
    return refused == 0


def main() -> int:
    """Build for this processor, or with `--all` for every kind told apart; says what came of it."""
    kinds = targets() if "--all" in sys.argv[1:] else (None,)
    for kind in kinds:
        try:
            print(f"native CPU engine: {library(kind)}")  # noqa: T201
        except NativeError as reason:
            print(f"no native CPU engine, torch computes instead, several times as slowly: {reason}")  # noqa: T201
            return int("--all" in sys.argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
