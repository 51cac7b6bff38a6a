"""What the environment tells a worker."""

from __future__ import annotations

import socket
from typing import Literal

from pydantic import Field

from kit.config import ServiceConfig


class WorkerConfig(ServiceConfig):
    """A worker's configuration; the KV pool is sized from free memory unless told in bytes or pages.

    A worker with a `worker_model` serves that name only, any other takes what the registry gives it. One that
    listens on every address tells the registry `worker_advertise_host` and its port.
    """

    worker_id: str = Field(default="worker-0", pattern=r"^[A-Za-z0-9_-]+$")
    worker_model: str = ""
    worker_listen: str = "127.0.0.1:0"
    worker_advertise_host: str = Field(default_factory=socket.gethostname, min_length=1)
    registry_target: str
    worker_dtype: Literal["float32", "bfloat16", "int8"] = "bfloat16"
    worker_device: Literal["cpu", "cuda"] = "cpu"
    worker_kernels: Literal["auto", "native", "triton", "torch"] = "auto"
    worker_threads: int | None = Field(default=None, ge=1)
    kv_bytes: int | None = Field(default=None, ge=1)
    page_count: int | None = Field(default=None, ge=1)
    page_size: int = Field(default=16, ge=1)
    slot_count: int = Field(default=256, ge=1)
    max_step_tokens: int = Field(default=512, ge=1)
    step_hang_s: float = Field(default=20.0, gt=0)
    drain_grace_s: float = Field(default=20.0, ge=0)
