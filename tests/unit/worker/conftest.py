"""Engines for the tests: a small random Llama, loaded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.worker.engine import load_engine
from tests.unit.worker.engine_driver import TINY, TINY_CONFIG, cases_of, seal

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.engine.runner import Runner


@pytest.fixture(scope="session")
def tiny_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seal(TINY, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_engine(tiny_artifact: Path) -> Runner:
    return load_engine(tiny_artifact, TINY_CONFIG)  # type: ignore[return-value]


@pytest.fixture(scope="session")
def tiny_cases() -> list[dict[str, Any]]:
    return cases_of(TINY.name)
