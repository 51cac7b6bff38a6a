"""What the OpenAI-compatible faces answer."""

from __future__ import annotations

from services.gateway.adapters.http.openapi.native import ID
from services.gateway.adapters.http.openapi.refusals import openai_error
from services.gateway.adapters.http.openapi.schema import (
    COUNT,
    INTEGER,
    NULL,
    NUMBER,
    TEXT,
    Schema,
    array,
    nullable,
    record,
    ref,
    words,
)
from services.gateway.core.outcome import FinishReason

_END: Schema = {
    "finish_reason": nullable(words("stop", "length")),
    "x_tokenloom_finish_reason": nullable(words(*(reason.label for reason in FinishReason))),
}
_ENTRY: Schema = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT)}
_USAGE: Schema = {"usage": nullable(ref("Usage"))}


def openai() -> dict[str, Schema]:
    """Every OpenAI answer by its name."""
    message = record({"role": words("assistant"), "content": TEXT, "refusal": NULL})
    delta = record({"content": TEXT}, {"role": words("assistant")})
    chat, text = nullable(ref("ChatLogprobs")), nullable(ref("CompletionLogprobs"))
    return {
        "OpenAIError": openai_error(),
        "ChatCompletion": _body("chat.completion", {"message": message, "logprobs": chat})
        | {"required": [*_HEAD, "choices", "usage"]},
        "ChatCompletionChunk": _body("chat.completion.chunk", {"delta": delta}, {"logprobs": chat}),
        "Completion": _body("text_completion", {"text": TEXT, "logprobs": text}),
        "Usage": _usage(),
        "ChatLogprobs": record({"content": array(ref("ChatTokenLogprob")), "refusal": NULL}),
        "ChatTokenLogprob": record(_ENTRY | {"top_logprobs": array(record(_ENTRY))}),
        "CompletionLogprobs": _completion_logprobs(),
        "Model": _model(),
        "ModelList": record({"object": words("list"), "data": array(ref("Model"))}),
    }


_HEAD = ("object", "id", "created", "model")


def _body(kind: str, choice: Schema, optional: Schema | None = None) -> Schema:
    choices = array(record({"index": COUNT} | choice | _END, optional))
    head = {"object": words(kind), "id": ID, "created": COUNT, "model": TEXT}
    return record(head | {"choices": choices}, _USAGE)


def _usage() -> Schema:
    counts = {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}
    return record(counts | {"prompt_tokens_details": record({"cached_tokens": COUNT})})


def _completion_logprobs() -> Schema:
    return record(
        {
            "tokens": array(TEXT),
            "token_logprobs": array(NUMBER),
            "top_logprobs": array({"type": "object", "additionalProperties": NUMBER}),
            "text_offset": array(COUNT),
        }
    )


def _model() -> Schema:
    return record(
        {
            "id": TEXT,
            "object": words("model"),
            "created": INTEGER,
            "owned_by": TEXT,
            "version": TEXT,
            "context_length": COUNT,
            "max_model_len": COUNT,
            "family": TEXT,
        }
    )
