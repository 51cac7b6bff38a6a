"""Engines for the tests: a small random Llama, loaded once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from services.worker.engine import load_engine
from tests.unit.worker.engine_driver import TINY, TINY_CONFIG, cases_of, needs_native, seal

if TYPE_CHECKING:
    from pathlib import Path

    from services.worker.engine.runner import Runner


@pytest.fixture(scope="session")
def tiny_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seal(TINY, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session", params=["native", "torch"])
def tiny_engine(request: pytest.FixtureRequest, tiny_artifact: Path) -> Runner:
    if request.param == "native":
        needs_native()
    return load_engine(tiny_artifact, replace(TINY_CONFIG, kernels=request.param))  # type: ignore[return-value]


@pytest.fixture(scope="session")
def tiny_cases() -> list[dict[str, Any]]:
    return cases_of(TINY.name)
