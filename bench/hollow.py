"""A worker whose engine computes nothing: what remains is the cost of the platform.

`python -m bench.hollow` is the worker's own process with that engine. Its tokens say when they were drawn, so
that whoever receives one knows how long it was under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.stand import Stand
from kit import lifecycle, log
from kit.config import load
from services.worker.bootstrap import serve
from services.worker.config import WorkerConfig
from tests.models import SMOLLM2, imported
from tokenloom.api.worker.v1 import worker_pb2
from tokenloom.up.console import Console
from tokenloom.up.layout import Layout
from tokenloom.up.options import Options
from tokenloom.up.platform import Platform

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tokenloom.up.child import Spec

STEP_MS = "TOKENLOOM_BENCH_STEP_MS"
TICK_S = 50e-6
_FIRST_ID, _TICKS = 1_000, 48_000


class HollowEngine:
    """Draws for every row that reached the end of its tokens; a step lasts `step_s` and takes no CPU."""

    runtime_revision = "hollow"
    page_size, page_count, slot_count, max_step_tokens = 16, 32_768, 1_024, 4_096
    context_length, vocab_size, kv_bytes_per_token = 8_192, 49_152, 0

    def __init__(self, model_version: str = "hollow@1", step_s: float = 0.0) -> None:
        self.model_version = model_version
        self._step_s = step_s
        self._left: dict[int, int] = {}

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """Run one step."""
        left = self._left
        for new in plan.add:
            left[new.slot] = len(new.token_ids) - new.computed_len
        drawn = []
        for slot, count in zip(plan.slot, plan.token_count, strict=True):
            left[slot] -= count
            if left[slot] <= 0:
                left[slot] = 1
                drawn.append(slot)
        time.sleep(self._step_s)  # on the engine's own thread, as a device would keep it waiting
        return worker_pb2.StepResult(
            slot=drawn, token_id=[_stamp()] * len(drawn), forward_us=int(self._step_s * 1e6)
        )

    def reset(self) -> None:
        """Forget every slot."""
        self._left.clear()


def age_s(token_id: int) -> float:
    """Seconds since a token was drawn, to a tick; 2.4 s at most."""
    return (_stamp() - token_id) % _TICKS * TICK_S


def _stamp() -> int:
    return _FIRST_ID + int(time.monotonic() / TICK_S) % _TICKS


class _HollowLayout(Layout):
    def _worker(self, name: str, model: str, nats_port: int) -> Spec:
        return replace(super()._worker(name, model, nats_port), argv=(sys.executable, "-m", "bench.hollow"))


class _HollowPlatform(Platform):
    def __init__(self, options: Options, console: Console) -> None:
        super().__init__(options, console)
        self._layout = _HollowLayout(**{name: getattr(self._layout, name) for name in _FIELDS})


_FIELDS = ("options", "secrets", "sockets", "trust")


@contextlib.asynccontextmanager
async def control_plane(step_ms: float = 0.0) -> AsyncIterator[Stand]:
    """The platform with a hollow worker, from serving to drained."""
    os.environ |= {STEP_MS: str(step_ms), "TOKENLOOM_TOKENIZER_QUEUE": "1024", "GRPC_VERBOSITY": "NONE"}
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-bench-", dir="/tmp"))
    with imported("smollm2", SMOLLM2) as models, (directory / "log").open("w") as logged:
        async with _HollowPlatform(Options(directory, models_dir=models), Console(logged)) as platform:
            yield Stand(platform, directory)
    await asyncio.to_thread(shutil.rmtree, directory)


def main() -> int:
    """Be a worker."""
    config = load(WorkerConfig)
    log.configure("worker", fmt=config.log_format, level=config.log_level)
    step_s = float(os.environ.get(STEP_MS, "0")) / 1e3

    def hollow(directory: Path) -> HollowEngine:
        return HollowEngine(f"{directory.parent.name}@{directory.name}", step_s)

    return lifecycle.run(lambda stop: serve(config, stop, hollow), grace_s=config.drain_grace_s + 15)


if __name__ == "__main__":
    sys.exit(main())
