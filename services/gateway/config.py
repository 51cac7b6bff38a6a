"""The gateway's environment."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it at run time
from typing import Self

from pydantic import Field, model_validator

from kit import tls as kit_tls
from kit.config import ServiceConfig

_CERT, _KEY = "TOKENLOOM_PUBLIC_TLS_CERT", "TOKENLOOM_PUBLIC_TLS_KEY"


class GatewayConfig(ServiceConfig):
    """Everything the gateway reads from `TOKENLOOM_*`; with a public certificate, callers speak TLS to it."""

    gateway_id: str = Field(default="gateway-0", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    grpc_listen: str = "127.0.0.1:0"
    http_listen: str = "127.0.0.1:0"
    public_tls_cert: Path | None = None
    public_tls_key: Path | None = None
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
    resume_lease_s: float = Field(default=30.0, gt=0)
    idempotency_ttl_s: float = Field(default=86400.0, ge=1)
    idempotency_claim_timeout_s: float = Field(default=10.0, gt=0)
    keys_staleness_s: float = Field(default=900.0, gt=0)
    drain_grace_s: float = Field(default=25.0, ge=0)
    tenant_label_limit: int = Field(default=50, ge=1)

    @property
    def public_tls(self) -> kit_tls.KeyPair | None:
        """What the gateway proves itself with to callers."""
        if not (self.public_tls_cert and self.public_tls_key):
            return None
        return kit_tls.KeyPair(self.public_tls_cert, self.public_tls_key)

    @model_validator(mode="after")
    def _usable_public_tls(self) -> Self:
        kit_tls.all_or_none({_CERT: self.public_tls_cert, _KEY: self.public_tls_key})
        if self.public_tls:
            kit_tls.check_pair(self.public_tls, _CERT, _KEY)
        return self
