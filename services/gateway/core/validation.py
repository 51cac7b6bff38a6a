"""From untrusted data to a `GenerationSpec`, or to a refusal that names the field and what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from services.gateway.core.spec import GenerationSpec, PromptSpec

Naming = Literal["camel", "snake"]


def parse_json(body: bytes) -> object:
    """Decode a JSON body; refuses invalid UTF-8, NaN and Infinity, and nesting beyond reason."""
    raise NotImplementedError


def parse_generation(data: object, naming: Naming = "camel") -> GenerationSpec:
    """Validate a generation: `camel` for the native JSON, `snake` for a gRPC request's set fields.

    `data` is a mapping of field names to plain values (a gRPC servicer leaves out what is unset; enums
    come as their lower-case word, `messages` as a list of {"role", "content"}). A null is as good as
    missing. Raises `ServiceError` INVALID_ARGUMENT.
    """
    raise NotImplementedError


def parse_prompt(data: object, naming: Naming = "camel") -> PromptSpec:
    """Validate what CountTokens takes: `model` and one of `prompt` and `messages`."""
    raise NotImplementedError
