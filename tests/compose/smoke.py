"""Brings the compose stack up and treats it as its operators and callers will: `make compose-smoke`.

Needs a Docker engine, and Compose 1.29 or 2: COMPOSE="docker-compose" or COMPOSE="docker compose" chooses
between them, else 2 is taken where there is one. The stack is a project of its own with fresh secrets and
ports from 28080 on. It is removed in the end with its volumes, unless KEEP=1.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

from tests.compose import drills
from tests.compose.stack import ROOT, Stack, StackError

ENVIRONMENT = {
    "TOKENLOOM_TAG": "smoke",
    "TOKENLOOM_HTTP_PORTS": "28080-28089",
    "TOKENLOOM_GRPC_PORTS": "29000-29009",
    "TOKENLOOM_PROMETHEUS_PORT": "29090",
    # Greedy outputs are compared over both faces: bfloat16 may differ between batches.
    "TOKENLOOM_WORKER_DTYPE": "float32",
    "TOKENLOOM_KV_BYTES": str(256 << 20),
}
DRILLS = (
    drills.build,
    drills.import_model,
    drills.start,
    drills.generate_over_both_faces,
    drills.find_the_row,
    drills.kill_the_worker_in_mid_stream,
    drills.recreate_the_worker_under_load,
    drills.recreate_the_scheduler_under_load,
    drills.scale_and_replace_a_gateway_under_load,
    drills.back_up_and_restore_the_ledger,
    drills.rotate_secrets,
)


def main() -> int:
    """Run every drill in order; 1 at the first that fails."""
    secrets = runpy.run_path(str(ROOT / "deploy" / "environment.py"))["environment"]()
    with tempfile.TemporaryDirectory(prefix="tokenloom-smoke-") as folder:
        stack = Stack(Path(folder, "env"), {**secrets, **ENVIRONMENT})
        _say(stack.tool())
        stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "1")
        try:
            return asyncio.run(_run(stack))
        finally:
            if os.environ.get("KEEP") != "1":
                began = time.monotonic()
                stack.compose("down", "--volumes", "--remove-orphans")
                _say(f"removed in {time.monotonic() - began:.0f} s")


async def _run(stack: Stack) -> int:
    for drill in DRILLS:
        name = drill.__name__.replace("_", " ")
        began = time.monotonic()
        try:
            for line in await drill(stack):
                _say(f"    {line}")
        except (AssertionError, StackError, TimeoutError) as error:
            _say(f"FAILED: {name}: {error}")
            _say(stack.compose("logs", "--no-color", "--tail", "12", check=False))
            return 1
        _say(f"ok: {name} ({time.monotonic() - began:.0f} s)")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
