"""What `tokenloom up` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_DATA_DIR = Path(".tokenloom")


class UpError(Exception):
    """The platform cannot start; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Options:
    """One platform: port 0 picks a free one, `models_dir` defaults to one below `data_dir`.

    `served` names the models; each has `workers` workers of its own. With `tls` services prove themselves to
    one another, and callers reach gateways by TLS.
    """

    data_dir: Path
    http_port: int = 0
    grpc_port: int = 0
    gateways: int = 1
    workers: int = 1
    served: tuple[str, ...] = (DEFAULT_MODEL,)
    models_dir: Path | None = None
    nats_url: str | None = None
    database_url: str | None = None
    tls: bool = False

    @property
    def worker_models(self) -> list[str]:
        """The model of each worker, one worker after the other."""
        return [name for name in dict.fromkeys(self.served) for _ in range(self.workers)]

    @property
    def models(self) -> Path:
        """Where model artifacts lie."""
        return self.models_dir or self.data_dir / "models"


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient the supervisor is, in seconds."""

    start_s: float = 180.0
    probe_s: float = 2.0
    answer_s: float = 5.0
    hang_s: float = 20.0
    unserving_s: float = 30.0
    grace_s: float = 40.0
    backoff_s: float = 0.5
    backoff_max_s: float = 10.0
    settled_s: float = 30.0
    start_attempts: int = 5
