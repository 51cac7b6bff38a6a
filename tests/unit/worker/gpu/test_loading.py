"""Triton's kernels are taken where they can be had, and asked for in vain nowhere."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from services.worker import engine
from services.worker.engine import EngineConfig, EngineError, load_engine
from tests.unit.worker.engine_driver import TINY_CONFIG

if TYPE_CHECKING:
    from pathlib import Path

TRITON = replace(TINY_CONFIG, kernels="triton")


def test_the_revision_names_triton(tiny_artifact: Path) -> None:
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    revision = load_engine(tiny_artifact, TRITON).runtime_revision
    assert revision.startswith(f"triton-{triton.__version__}/cpu-")


def test_without_a_gpu_they_run_interpreted_alone(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr("services.worker.engine.gpu.INTERPRETED", False)
    with pytest.raises(EngineError, match="need a GPU"):
        load_engine(tiny_artifact, TRITON)


def test_without_triton_they_cannot_be_asked_for(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "services.worker.engine.gpu", None)
    monkeypatch.delattr(engine, "gpu", raising=False)
    with pytest.raises(EngineError, match="Triton kernels cannot be used"):
        load_engine(tiny_artifact, TRITON)


def test_a_cpu_takes_them_only_when_asked(tiny_artifact: Path) -> None:
    assert not load_engine(tiny_artifact, TINY_CONFIG).runtime_revision.startswith("triton")


def test_int8_is_not_theirs() -> None:
    with pytest.raises(EngineError, match="int8"):
        EngineConfig(dtype="int8", kernels="triton")
