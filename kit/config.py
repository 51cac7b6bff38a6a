"""Configuration from the environment: read once, frozen, refused loudly."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it at run time
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from pydantic import ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kit import tls as kit_tls
from kit.errors import Code, ServiceError

if TYPE_CHECKING:
    import ssl

ENV_PREFIX = "TOKENLOOM_"
_CA, _CERT, _KEY, _NATS_CA = (f"{ENV_PREFIX}{name}" for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "NATS_CA"))


class ConfigError(ServiceError):
    """A service cannot start with this environment; the message names each variable and what is allowed."""


class ServiceConfig(BaseSettings):
    """What every service is told; each service adds its own fields. `metrics_listen` is host:port.

    With `tls_ca`, `tls_cert` and `tls_key` (PEM files) the service speaks TLS with the others.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    nats_url: str
    state_dir: Path
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    metrics_listen: str = "127.0.0.1:0"
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_require_client_cert: bool = True
    nats_ca: Path | None = None

    @property
    def tls(self) -> kit_tls.Identity | None:
        """What this service proves itself with to the others."""
        if not (self.tls_ca and self.tls_cert and self.tls_key):
            return None
        pair = kit_tls.KeyPair(self.tls_cert, self.tls_key)
        return kit_tls.Identity(pair, self.tls_ca, self.tls_require_client_cert)

    @property
    def nats_tls(self) -> ssl.SSLContext | None:
        """How NATS is spoken to where its URL is a tls:// one."""
        return kit_tls.client_context(self.tls, self.nats_ca) if self.nats_url.startswith("tls://") else None

    @model_validator(mode="after")
    def _usable_tls(self) -> Self:
        kit_tls.all_or_none({_CA: self.tls_ca, _CERT: self.tls_cert, _KEY: self.tls_key})
        if self.tls:
            kit_tls.check_identity(self.tls, ca=_CA, cert=_CERT, key=_KEY)
        if self.nats_ca:
            if not self.nats_url.startswith("tls://"):
                raise kit_tls.TlsError(f"{_NATS_CA} needs a tls:// URL in {ENV_PREFIX}NATS_URL")
            kit_tls.check_ca(self.nats_ca, _NATS_CA)
        return self


T = TypeVar("T", bound=ServiceConfig)


def load(cls: type[T]) -> T:
    """Read `cls` from the environment, or raise `ConfigError`."""
    try:
        return cls.model_validate({})
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        problems = "; ".join(_problem(item["loc"], item["msg"]) for item in found)
        raise ConfigError(Code.INVALID_ARGUMENT, "INVALID_CONFIG", problems) from None


def _problem(place: tuple[int | str, ...], message: str) -> str:
    # What concerns several variables has no place, and names them itself.
    named = f"{ENV_PREFIX}{'_'.join(map(str, place)).upper()}: " if place else ""
    return named + message.removeprefix("Value error, ")
