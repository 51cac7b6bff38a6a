"""OpenAI response bodies: whole answers, stream chunks and errors, as plain JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit.errors import ServiceError
    from services.gateway.core.choice import ChoiceAssembler, Piece
    from services.gateway.core.openai_request import OpenAIRequest
    from services.gateway.core.outcome import Closed
    from services.gateway.core.vocabulary import Vocabulary

Json = dict[str, Any]


class OpenAIResponse:
    """Builds every body of one OpenAI call.

    A stream is: `opening()` chunks (chat only), `chunk(piece)` per piece, `usage_chunk(closed)` when it
    was asked for, then `data: [DONE]`; or, when `failed_reason(closed)` says so, `event: error` with
    `error_body` and no `[DONE]`.
    """

    def __init__(
        self,
        request: OpenAIRequest,
        request_id: str,
        created: int,
        model_version: str,
        vocabulary: Vocabulary,
    ) -> None:
        raise NotImplementedError

    def opening(self) -> list[Json]:
        """The chunks that open a chat stream, one a choice, with the assistant's role."""
        raise NotImplementedError

    def chunk(self, piece: Piece) -> Json:
        """The chunk of one piece."""
        raise NotImplementedError

    def usage_chunk(self, closed: Closed) -> Json:
        """The last chunk of a stream that asked for `include_usage`: no choices, the usage."""
        raise NotImplementedError

    def whole(self, choices: Sequence[ChoiceAssembler], closed: Closed) -> Json:
        """The body of a call that did not stream."""
        raise NotImplementedError


def failure(closed: Closed, error_reason: str = "") -> ServiceError | None:
    """The error that an OpenAI caller gets in place of an ending it has no word for, or None."""
    raise NotImplementedError


def error_body(error: ServiceError) -> Json:
    """`{"error": {...}}` as OpenAI clients read it."""
    raise NotImplementedError
