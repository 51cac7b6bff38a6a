"""OpenAI request bodies, mapped onto the same spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from services.gateway.core.spec import GenerationSpec

Face = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """An OpenAI call: the generation, and how its caller wants the answer."""

    face: Face
    spec: GenerationSpec
    stream: bool = False
    include_usage: bool = False


def parse_openai(data: object, face: Face) -> OpenAIRequest:
    """Validate the body of `/v1/chat/completions` or `/v1/completions`; errors use OpenAI's names."""
    raise NotImplementedError
