"""How an engine is set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.worker.engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Precision, device and sizes.

    `kernels` are the native ones on a cpu, Triton's on a GPU, where this machine and model have any, unless
    one kind is asked for.
    int8 is that of weights, activations and KV; only the native kernels have it.
    The pool has `page_count` pages, else what fits into `kv_bytes`, else into `kv_fraction` of free memory.
    """

    dtype: Literal["float32", "bfloat16", "int8"] = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    kernels: Literal["auto", "native", "triton", "torch"] = "auto"
    page_size: int = 16
    page_count: int | None = None
    kv_bytes: int | None = None
    kv_fraction: float = 0.3
    slot_count: int = 256
    max_step_tokens: int = 512
    threads: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that no engine could be built with."""
        allowed = {
            "dtype": ("float32", "bfloat16", "int8"),
            "device": ("cpu", "cuda"),
            "kernels": ("auto", "native", "triton", "torch"),
        }
        for name, values in allowed.items():
            if (value := getattr(self, name)) not in values:
                raise EngineError(f"{name} must be one of {', '.join(values)}, not {value!r}")
        if self.dtype == "int8" and (self.device != "cpu" or self.kernels not in ("auto", "native")):
            raise EngineError("int8 takes the native kernels on a cpu")
        for name in ("page_size", "page_count", "kv_bytes", "slot_count", "max_step_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EngineError(f"{name} must be at least 1, not {value}")
        if not 0 < self.kv_fraction < 1:
            raise EngineError(f"kv_fraction must lie between 0 and 1, not {self.kv_fraction}")
