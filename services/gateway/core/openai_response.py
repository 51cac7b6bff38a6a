"""OpenAI response bodies: whole answers, stream chunks and errors, as plain JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.errors import Code, ServiceError
from services.gateway.core import openai_logprobs
from services.gateway.core.outcome import FinishReason, error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.core.choice import ChoiceAssembler, Piece, TokenRecord
    from services.gateway.core.openai_request import OpenAIRequest
    from services.gateway.core.outcome import Closed
    from services.gateway.core.vocabulary import Vocabulary

Json = dict[str, Any]

_WORDS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.DEADLINE: "length"}
_CODES = {
    "CONTEXT_TOO_LONG": "context_length_exceeded",
    "INVALID_REQUEST": "invalid_value",
    "TENANT_RATE_LIMIT": "rate_limit_exceeded",
    "BUDGET_EXHAUSTED": "insufficient_quota",
}
_TYPES = {
    Code.RESOURCE_EXHAUSTED: "rate_limit_error",
    Code.INTERNAL: "server_error",
    Code.UNAVAILABLE: "server_error",
    Code.DEADLINE_EXCEEDED: "server_error",
}


class OpenAIResponse:
    """Builds every body of one OpenAI call.

    A stream is: `opening()` chunks (chat only), `chunk(piece)` per piece, `usage_chunk(closed)` when it
    was asked for, then `data: [DONE]`; or, when `failure(closed)` gives an error, `event: error` with its
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
        """`created` is in seconds since 1970."""
        self._request = request
        self._chat = request.face == "chat"
        self._vocabulary = vocabulary
        self._head = {"id": request_id, "created": created, "model": model_version}

    def opening(self) -> list[Json]:
        """The chunks that open a chat stream, one a choice, with the assistant's role."""
        if not self._chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(_choice(i, None, delta=delta)) for i in range(self._request.spec.n)]

    def chunk(self, piece: Piece) -> Json:
        """The chunk of one piece."""
        logprobs = self._logprobs(piece.tokens, piece.text_offset)
        body: Json = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
        return self._chunk(_choice(piece.choice, piece.finish_reason, **body, logprobs=logprobs))

    def usage_chunk(self, closed: Closed) -> Json:
        """The last chunk of a stream that asked for `include_usage`: no choices, the usage."""
        return self._body("chat.completion.chunk") | {"choices": [], "usage": usage(closed)}

    def whole(self, choices: Sequence[ChoiceAssembler], closed: Closed) -> Json:
        """The body of a call that did not stream."""
        answers = [self._answer(choice) for choice in choices]
        return self._body("chat.completion") | {"choices": answers, "usage": usage(closed)}

    def _answer(self, choice: ChoiceAssembler) -> Json:
        logprobs = self._logprobs(choice.records, 0)
        body: Json = {"text": choice.text}
        if self._chat:
            body = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        return _choice(choice.choice, choice.finish_reason, **body, logprobs=logprobs)

    def _chunk(self, choice: Json) -> Json:
        chunk = self._body("chat.completion.chunk") | {"choices": [choice]}
        # With include_usage every chunk has the member; only the last one says something.
        return chunk | {"usage": None} if self._request.include_usage else chunk

    def _body(self, chat_object: str) -> Json:
        return {"object": chat_object if self._chat else "text_completion"} | self._head

    def _logprobs(self, records: Sequence[TokenRecord], text_offset: int) -> Json | None:
        if self._request.spec.logprobs is None:
            return None
        if self._chat:
            return openai_logprobs.chat(records, self._vocabulary)
        return openai_logprobs.completions(records, self._vocabulary, text_offset)


def usage(closed: Closed) -> Json:
    """Token counts as OpenAI names them."""
    return {
        "prompt_tokens": closed.input_tokens,
        "completion_tokens": closed.output_tokens,
        "total_tokens": closed.input_tokens + closed.output_tokens,
        "prompt_tokens_details": {"cached_tokens": closed.cached_tokens},
    }


def failure(closed: Closed, error_reason: str = "") -> ServiceError | None:
    """The error that an OpenAI caller gets in place of an ending it has no word for, or None."""
    match closed.finish_reason:
        case FinishReason.CANCELLED:
            return ServiceError(Code.CANCELLED, "CANCELLED", "the generation was cancelled")
        case FinishReason.INCOMPLETE:
            message = "the generation was cut off by a lost worker; what was sent stays valid"
            return ServiceError(Code.UNAVAILABLE, "INCOMPLETE", message)
        case FinishReason.ERROR:
            return error_of(error_reason)
        case _:
            return None


def error_body(error: ServiceError, finish_reason: FinishReason | None = None) -> Json:
    """`{"error": {...}}` as OpenAI clients read it; `finish_reason` for a request that was accepted."""
    body: Json = {
        "message": error.message,
        "type": _type(error),
        "param": error.field or None,
        "code": _code(error),
        "reason": error.reason,
    }
    if error.retry_after_ms is not None:
        body["retry_after_ms"] = error.retry_after_ms
    if finish_reason is not None:
        body["x_tokenloom_finish_reason"] = finish_reason.label
    return {"error": body}


def _choice(index: int, reason: FinishReason | None, **body: Any) -> Json:  # noqa: ANN401
    return {
        "index": index,
        **body,
        "finish_reason": None if reason is None else _WORDS.get(reason),
        "x_tokenloom_finish_reason": None if reason is None else reason.label,
    }


def _code(error: ServiceError) -> str:
    if error.code is Code.NOT_FOUND and error.field == "model":
        return "model_not_found"
    return _CODES.get(error.reason, error.reason.lower())


def _type(error: ServiceError) -> str:
    if error.reason == "BUDGET_EXHAUSTED":
        return "insufficient_quota"
    return _TYPES.get(error.code, "invalid_request_error")
