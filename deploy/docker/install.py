"""Make a service's virtual environment from the lock, in an image build: `python install.py SERVICE VENV`.

The service's extra in pyproject.toml says what it needs, pip says what that needs in turn, and the lock gives
each its version and hashes. torch and its CUDA companions are apart: their builds differ, so they come from
`--wheels DIR` where it has them, else from the index (TORCH_INDEX_URL, where set).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROJECT = re.compile(r"tokenloom\[([\w,-]+)\]$")
APART = re.compile(r"(torch|triton|(nvidia|cuda)-[a-z0-9-]+)$")


class InstallError(Exception):
    """The environment cannot be made as locked."""


def requirements(project: Mapping[str, Any], extra: str) -> list[str]:
    """What a caller needs and what an extra adds, the project's own extras unfolded."""
    extras = project["optional-dependencies"]
    if extra not in extras:
        raise InstallError(f"pyproject.toml has no extra {extra}: there are {', '.join(extras)}")
    found = list(project["dependencies"])
    pending = list(extras[extra])
    while pending:
        item = pending.pop()
        if own := PROJECT.match(item):
            pending += [part for name in own[1].split(",") for part in extras[name]]
        elif item not in found:
            found.append(item)
    return found


def locked(lock: str) -> dict[str, str]:
    """Each package's entry in the lock, hashes included."""
    entries = re.findall(r"^[A-Za-z0-9].*(?:\n[ \t].*)*", lock, re.MULTILINE)
    return {canonical(entry.partition("==")[0]): entry for entry in entries}


def constraints(entries: Mapping[str, str]) -> str:
    """The lock's versions without hashes, for resolving."""
    return "".join(entry.split()[0] + "\n" for entry in entries.values())


def divide(resolved: Mapping[str, str], entries: Mapping[str, str]) -> tuple[str, list[str]]:
    """The lock's part that was resolved, and the pinned packages that are apart."""
    apart = {name: version for name, version in resolved.items() if name not in entries}
    if strangers := [name for name in apart if not APART.match(name)]:
        raise InstallError(f"not in requirements.lock: {', '.join(strangers)}; run make lock")
    chosen = "".join(entries[name] + "\n" for name in sorted(resolved.keys() - apart.keys()))
    return chosen, [f"{name}=={version}" for name, version in sorted(apart.items())]


def canonical(name: str) -> str:
    """The name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install(service: str, target: Path, source: Path, *, wheels: Path | None, with_pip: bool) -> None:
    """Make the environment at `target` from pyproject.toml and requirements.lock in `source`."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    entries = locked((source / "requirements.lock").read_text())
    venv.create(target, with_pip=with_pip, symlinks=True)
    apart_from = ["--find-links", str(wheels)] if wheels else []
    if index := os.environ.get("TORCH_INDEX_URL"):
        apart_from += ["--extra-index-url", index]
    with tempfile.TemporaryDirectory() as folder:
        versions, chosen_file = Path(folder, "constraints.txt"), Path(folder, "requirements.txt")
        versions.write_text(constraints(entries))
        wanted = requirements(project, service)
        chosen, apart = divide(_resolve(target, wanted, ["-c", str(versions), *apart_from]), entries)
        chosen_file.write_text(chosen)
        _pip(target, "install", "--no-deps", "--require-hashes", "-r", str(chosen_file))
        if apart:
            _pip(target, "install", "--no-deps", *apart_from, *apart)
    _pip(target, "check")


def _resolve(target: Path, wanted: Iterable[str], options: Iterable[str]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        dry = ("--dry-run", "--ignore-installed", "--quiet", "--report", report.name)
        _pip(target, "install", *dry, *options, *wanted)
        resolved = json.loads(Path(report.name).read_text())["install"]
    return {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in resolved}


def _pip(target: Path, verb: str, *arguments: str) -> None:
    python = str(target / "bin" / "python")
    only = ("--only-binary", ":all:", "--no-cache-dir", "--root-user-action", "ignore")
    options = only if verb == "install" else ()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, verb]
    subprocess.run([*command, *options, *arguments], check=True)  # noqa: S603 - arguments from the lock


def main() -> int:
    """Parse the command line and install."""
    parser = argparse.ArgumentParser(description="Make a service's virtual environment from the lock.")
    parser.add_argument("service")
    parser.add_argument("venv", type=Path)
    parser.add_argument("--wheels", type=Path, help="a folder that may hold wheels of torch")
    parser.add_argument("--with-pip", action="store_true", help="leave pip in the environment")
    options = parser.parse_args()
    source = Path(__file__).parent
    try:
        install(options.service, options.venv, source, wheels=options.wheels, with_pip=options.with_pip)
    except InstallError as error:
        sys.stderr.write(f"install: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
