"""A model's chat template, rendered in a sandbox that can change nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kit.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.gateway.core.spec import ChatMessage

_MAX_REASON_CHARS = 200


class _RefusedByTemplateError(TemplateError):
    """The template called `raise_exception`."""


class ChatTemplate:
    """Turns messages into a prompt. Rendering is thread-safe."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compile; raises ValueError for a template that is no Jinja."""
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.message}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Iterable[ChatMessage]) -> str:
        """The prompt's text, up to where the assistant's turn begins; refuses `messages` on any fault."""
        turns = [message.model_dump() for message in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._tokens)
        except _RefusedByTemplateError as error:
            reason = (error.message or "")[:_MAX_REASON_CHARS]
            raise invalid("messages", f"the model's chat template refuses the messages: {reason}") from None
        except Exception as error:
            # A template is a program of the model's author; whatever it does, only this request fails.
            kind = type(error).__name__
            raise invalid("messages", f"the model's chat template fails on the messages ({kind})") from None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON as prompts want it, without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedByTemplateError(message)
