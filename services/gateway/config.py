"""The gateway's environment."""

from __future__ import annotations

from pydantic import Field

from kit.config import ServiceConfig


class GatewayConfig(ServiceConfig):
    """Everything the gateway reads from `TOKENLOOM_*`."""

    gateway_id: str = Field(default="gateway-0", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    grpc_listen: str = "127.0.0.1:0"
    http_listen: str = "127.0.0.1:0"
    scheduler_target: str
    usage_target: str

    default_max_output_tokens: int = Field(default=512, ge=1)
    body_limit_bytes: int = Field(default=1 << 20, ge=1024)
    tokenizer_threads: int = Field(default=2, ge=1)
    tokenizer_queue: int = Field(default=64, ge=1)
    outbox_max_bytes: int = Field(default=64 << 20, ge=1 << 16)
    stream_buffer_bytes: int = Field(default=4 << 20, ge=1 << 12)
    reader_timeout_s: float = Field(default=30.0, gt=0)
    resubmit_timeout_s: float = Field(default=5.0, gt=0)
    keys_staleness_s: float = Field(default=900.0, gt=0)
    drain_grace_s: float = Field(default=25.0, ge=0)
    tenant_label_limit: int = Field(default=50, ge=1)
