"""What the environment tells the scheduler."""

from __future__ import annotations

from pydantic import Field

from kit.config import ServiceConfig


class SchedulerConfig(ServiceConfig):
    """The scheduler's configuration; times in seconds, sizes in bytes."""

    scheduler_listen: str = "127.0.0.1:0"
    pipeline_depth: int = Field(default=1, ge=1, le=2)
    chunk_tokens: int = Field(default=128, ge=1)
    # Of a step that computes prompts beside decodes: the gap in the streams that run.
    step_target_s: float = Field(default=0.045, gt=0)
    # Callers who cannot wait that long say so with a deadline.
    max_queue_s: float = Field(default=120.0, gt=0)
    lease_s: float = Field(default=10.0, gt=0)
    # Above the time in which a worker itself reports that a step hangs.
    step_timeout_s: float = Field(default=30.0, gt=0)
    vacant_s: float = Field(default=60.0, ge=0)
    retention_s: float = Field(default=600.0, ge=0)
    retention_bytes: int = Field(default=256 << 20, ge=0)
    session_messages: int = Field(default=1024, ge=1)
    probe_s: float = Field(default=5.0, gt=0)
    drain_grace_s: float = Field(default=20.0, ge=0)
    outbox_bytes: int = Field(default=64 << 20, ge=1)
