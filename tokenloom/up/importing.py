"""Models of a data directory, and the importer's process."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenloom.up.layout import environment
from tokenloom.up.options import DEFAULT_MODEL, UpError

if TYPE_CHECKING:
    from pathlib import Path

# What the importer calls the published default.
DEFAULT_SOURCE = "smollm2"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One imported version, as its manifest says."""

    name: str
    version: str
    family: str
    context_length: int
    tokenizer_version: str
    source: str
    licence: str
    size_bytes: int
    directory: Path

    @property
    def model_version(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


def list_models(models_dir: Path) -> list[ModelFile]:
    """Every version below `models_dir`, by name and then age; unreadable ones are left out."""
    manifests = sorted(
        models_dir.glob("*/*/manifest.json"), key=lambda path: (path.parts[-3], path.stat().st_mtime)
    )
    found = [_read(path) for path in manifests if not path.parts[-2].startswith(".")]
    return [model for model in found if model is not None]


async def ensure_model(models_dir: Path, name: str) -> None:
    """Have `name`: the default model is imported when missing, another one must have been imported."""
    if any(model.name == name for model in list_models(models_dir)):
        return
    if name != DEFAULT_MODEL:
        raise UpError(f"model {name} is not in {models_dir}: tokenloom models import SOURCE --name {name}")
    if await import_model(DEFAULT_SOURCE, name, models_dir) != 0:
        raise UpError(f"the default model could not be imported into {models_dir}; the lines above say why")


async def import_model(source: str, name: str, models_dir: Path, *options: str) -> int:
    """Run the importer, its progress on this process's stderr; returns its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.registry.importing", source),
        *("--name", name, "--models-dir", str(models_dir), *options),
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _read(path: Path) -> ModelFile | None:
    try:
        manifest = json.loads(path.read_text())
        return ModelFile(
            name=path.parts[-3],
            version=manifest["version"],
            family=manifest["family"],
            context_length=manifest["context_length"],
            tokenizer_version=manifest["tokenizer_version"],
            source=manifest["source"],
            licence=manifest["licence"],
            size_bytes=sum(file["bytes"] for file in manifest["files"].values()),
            directory=path.parent,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
