"""What the environment tells the registry."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it at run time
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from kit.artifacts import is_name
from kit.config import ServiceConfig


def _split(value: object) -> object:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not is_name(name):
            raise ValueError(f"{name!r} is not a model name; allowed: names separated by commas")
    return tuple(dict.fromkeys(names))


class RegistryConfig(ServiceConfig):
    """The registry's configuration; no `serve_models` means every name's newest version."""

    registry_listen: str = "127.0.0.1:0"
    models_dir: Path
    serve_models: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_check_names)
    ] = ()
    lease_s: float = Field(default=10.0, gt=0)
    drain_grace_s: float = Field(default=5.0, ge=0)
