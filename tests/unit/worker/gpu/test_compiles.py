"""Every kernel compiles for the GPUs it is meant for, without one: in a process that does not interpret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parents[4]
COMPILE = Path(__file__).with_name("compile_ahead.py")
MOST_SHARED_BYTES = 232_448  # of a block on sm_90


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("kernels")),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, str(COMPILE)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_kernel_compiles_ahead_for_hopper(compiled: dict[str, dict[str, int]]) -> None:
    kernels = {name.partition(" ")[0] for name in compiled}
    assert kernels == {
        "decode",
        "reduce",
        "prefill",
        "add_norm",
        "rotate_and_write",
        "gated",
        "scan",
        "choose",
    }
    for name, found in compiled.items():
        assert found["cubin_bytes"] > 0, name


def test_attention_uses_tensor_cores_and_nothing_in_bfloat16_spills(
    compiled: dict[str, dict[str, int]],
) -> None:
    for name, found in compiled.items():
        if name.startswith(("decode bf16", "prefill bf16")):
            assert found["tensor_core_products"] > 0, name
        if "bf16" in name:
            assert found["stack_bytes"] == 0, name


def test_five_blocks_of_decode_attention_and_two_of_prompts_share_a_multiprocessor(
    compiled: dict[str, dict[str, int]],
) -> None:
    for name, found in compiled.items():
        together = {"decode bf16": 5, "prefill bf16": 2}.get(" ".join(name.split()[:2]), 1)
        assert found["shared_bytes"] * together <= MOST_SHARED_BYTES, name
