"""Where others reach this worker."""

from __future__ import annotations

_WILDCARDS = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - compared with, not bound


def advertised(bound: str, host: str) -> str:
    """The target to tell the registry; `host` stands in for an address that means every interface."""
    name, _, port = bound.rpartition(":")
    return f"{host}:{port}" if name in _WILDCARDS else bound
