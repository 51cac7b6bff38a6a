"""Configuration from the environment: read once, frozen, refused loudly."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it at run time
from typing import Literal, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kit.errors import Code, ServiceError

ENV_PREFIX = "TOKENLOOM_"


class ConfigError(ServiceError):
    """A service cannot start with this environment; the message names each variable and what is allowed."""


class ServiceConfig(BaseSettings):
    """What every service is told; each service adds its own fields. `metrics_listen` is host:port."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    nats_url: str
    state_dir: Path
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    metrics_listen: str = "127.0.0.1:0"


T = TypeVar("T", bound=ServiceConfig)


def load(cls: type[T]) -> T:
    """Read `cls` from the environment, or raise `ConfigError`."""
    try:
        return cls.model_validate({})
    except ValidationError as error:
        problems = "; ".join(
            f"{ENV_PREFIX}{'_'.join(map(str, item['loc'])).upper()}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False)
        )
        raise ConfigError(Code.INVALID_ARGUMENT, "INVALID_CONFIG", problems) from None
