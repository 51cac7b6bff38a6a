"""Bodies that the faces take, from the models and tables that validate them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic.alias_generators import to_camel

from services.gateway.adapters.http.openapi.schema import (
    FLAG,
    NULL,
    TEXT,
    Schema,
    array,
    nullable,
    record,
    ref,
    words,
)
from services.gateway.core import openai_request, spec
from services.gateway.core.validation import INPUTS, LATER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.gateway.core.openai_request import Face

_IGNORED = "accepted and ignored"
_UNSERVED = "not served: only the value that changes nothing is accepted"
_TOKEN_IDS = array({"type": "integer", "minimum": 0, "maximum": spec.INT32_MAX}, minItems=1)


def requests() -> dict[str, Schema]:
    """Every request schema by its name."""
    return {
        "ChatMessage": _message(),
        "GenerationRequest": _native(),
        "ChatCompletionRequest": _chat(),
        "ChatCompletionMessage": _openai_message(),
        "CompletionRequest": _completion(),
    }


def _spec_fields() -> dict[str, Schema]:
    """Fields of a generation by their canonical names; a null is as good as missing."""
    schema = spec.GenerationSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    fields = {name: nullable(_untitled(found)) for name, found in schema["properties"].items()}
    fields["model"] = _untitled(schema["properties"]["model"])
    fields["stop"]["anyOf"][0]["items"]["maxLength"] = spec.MAX_STOP_BYTES
    return fields


def _message() -> Schema:
    schema = spec.ChatMessage.model_json_schema()
    properties = {name: _untitled(found) for name, found in schema["properties"].items()}
    return record(properties) | {"additionalProperties": False}


def _native() -> Schema:
    fields = {to_camel(name): found for name, found in _spec_fields().items()}
    fields |= {to_camel(name): _neutral(value) for name, value in LATER.items()}
    inputs = [to_camel(name) for name in INPUTS]
    return _body(fields) | {"oneOf": [{"required": [name], "properties": _given(name)} for name in inputs]}


def _given(name: str) -> Schema:
    return {name: {"not": NULL}}


def _chat() -> Schema:
    fields = _openai("chat")
    fields["messages"] = array(ref("ChatCompletionMessage"), minItems=1)
    fields["logprobs"] = nullable(FLAG | {"description": "true or false"})
    fields["top_logprobs"] = _spec_fields()["logprobs"]
    return _body(fields, "messages")


def _completion() -> Schema:
    fields = _openai("completions")
    text = TEXT | {"minLength": 1}
    either = [
        text,
        _TOKEN_IDS,
        array(text, minItems=1, maxItems=1),
        array(_TOKEN_IDS, minItems=1, maxItems=1),
    ]
    fields["prompt"] = {"anyOf": either, "description": "one prompt: a string or an array of token ids"}
    fields["logprobs"] = _spec_fields()["logprobs"]
    return _body(fields, "prompt")


def _openai(face: Face) -> dict[str, Schema]:
    of_spec = _spec_fields()
    fields = {name: of_spec[name] for name in sorted(openai_request.SAME)}
    fields["stop"] = {"anyOf": [*of_spec["stop"]["anyOf"], of_spec["stop"]["anyOf"][0]["items"]]}
    fields["top_k"] = nullable({"type": "integer", "minimum": -1, "maximum": spec.INT32_MAX})
    for name in openai_request.MAPPED[face] & {"max_tokens", "max_completion_tokens"}:
        fields[name] = of_spec["max_output_tokens"]
    options = {"type": "object", "properties": {"include_usage": nullable(FLAG)}}
    fields |= {"stream": nullable(FLAG), "stream_options": nullable(options)}
    fields |= {name: {"description": _IGNORED} for name in sorted(openai_request.HARMLESS)}
    return fields | {name: _neutral(value) for name, value in openai_request.NEUTRAL.items()}


def _openai_message() -> Schema:
    part = record({"type": words("text"), "text": TEXT})
    nothing: Schema = {"enum": [None, False, 0, "", [], {}], "description": _UNSERVED}
    fields = {
        "role": words("system", "developer", "user", "assistant"),
        "content": {"anyOf": [TEXT, array(part)]},
        "name": {"description": _IGNORED},
    }
    fields |= dict.fromkeys(sorted(openai_request.MESSAGE_NEUTRAL), nothing)
    return _body(fields, "role", "content")


def _body(fields: Mapping[str, Schema], *required: str) -> Schema:
    needed = required if "role" in fields else ("model", *required)
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(needed),
        "additionalProperties": False,
    }


def _neutral(value: object) -> Schema:
    return {"enum": [value, None], "description": _UNSERVED}


def _untitled(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in {"title", "default"}} | _default(schema)


def _default(schema: Schema) -> Schema:
    return {} if schema.get("default") is None else {"default": schema["default"]}
