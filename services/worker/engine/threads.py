"""How torch's threads wait; it reads this from the environment when it is first imported."""

from __future__ import annotations

import os

# Long enough to bridge the gap between two operations of a step (measured: a region costs 5 us instead of
# 40 us), short enough that a waiting thread gives its core to the other processes at once.
_SPINS = "2000"


def prepare_threads() -> None:
    """Let waiting threads sleep, unless the operator chose otherwise. Call before torch is imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    os.environ.setdefault("KMP_BLOCKTIME", "0")
