"""OpenAI request bodies, mapped onto the same spec.

Fields that change nothing are accepted and ignored; fields that would change the output and are not served
are refused by name unless their value is neutral.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kit.errors import invalid
from services.gateway.core.spec import GenerationSpec
from services.gateway.core.validation import (
    LATER,
    body_object,
    build,
    refuse_unknown,
    refuse_unless_neutral,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Face = Literal["chat", "completions"]

# fmt: off
SAME = {
    "model", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop",
    "ignore_eos", "deadline_ms", "priority", "resume",
}
MAPPED: dict[Face, set[str]] = {
    "chat": {
        "messages", "max_completion_tokens", "max_tokens", "logprobs", "top_logprobs",
        "stream", "stream_options",
    },
    "completions": {"prompt", "max_tokens", "logprobs", "stream", "stream_options"},
}
# Tools are refused below, so how to choose among them says nothing.
HARMLESS = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prediction", "parallel_tool_calls", "tool_choice", "function_call",
}
# fmt: on
NEUTRAL: dict[str, object] = LATER | {
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "tools": [],
    "functions": [],
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "length_penalty": 1,
    "use_beam_search": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
}
MESSAGE_NEUTRAL = {"refusal", "annotations", "audio", "tool_calls", "function_call", "reasoning_content"}
_KEEP_ALL_TOP_K = -1


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """An OpenAI call: the generation, and how its caller wants the answer."""

    face: Face
    spec: GenerationSpec
    stream: bool = False
    include_usage: bool = False


def parse_openai(data: object, face: Face) -> OpenAIRequest:
    """Validate the body of `/v1/chat/completions` or `/v1/completions`; errors use OpenAI's names."""
    body = body_object(data)
    _refuse_unserved(body, face)
    fields = {name: value for name, value in body.items() if name in SAME}
    spelling: dict[str, str] = {}
    _map_output_limit(body, fields, spelling)
    _map_logprobs(body, face, fields, spelling)
    if isinstance(body.get("stop"), str):
        fields["stop"] = [body["stop"]]
    if body.get("top_k") == _KEEP_ALL_TOP_K:
        fields["top_k"] = 0
    if face == "chat":
        _map_messages(body, fields)
    else:
        _map_prompt(body, fields, spelling)
    spec = build(GenerationSpec, fields, lambda name: spelling.get(name, name))
    return OpenAIRequest(face, spec, _flag(body, "stream"), _include_usage(body))


def _refuse_unserved(body: Mapping[str, Any], face: Face) -> None:
    served = SAME | MAPPED[face] | HARMLESS
    for name, value in body.items():
        if name in NEUTRAL:
            refuse_unless_neutral(name, value, NEUTRAL[name])
        elif name not in served:
            raise refuse_unknown(name)


def _map_output_limit(body: Mapping[str, Any], fields: dict[str, Any], spelling: dict[str, str]) -> None:
    given = [name for name in ("max_completion_tokens", "max_tokens") if name in body]
    if len(given) > 1 and body[given[0]] != body[given[1]]:
        raise invalid(given[1], f"{given[1]} and {given[0]} differ; give one of them")
    if given:
        fields["max_output_tokens"] = body[given[0]]
    spelling["max_output_tokens"] = given[0] if given else "max_tokens"


def _map_logprobs(
    body: Mapping[str, Any], face: Face, fields: dict[str, Any], spelling: dict[str, str]
) -> None:
    if face == "completions":
        if "logprobs" in body:
            fields["logprobs"] = body["logprobs"]
        return
    spelling["logprobs"] = "top_logprobs"
    if _flag(body, "logprobs"):
        fields["logprobs"] = body.get("top_logprobs", 0)
    elif body.get("top_logprobs", 0) != 0 or body.get("top_logprobs") is False:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true")


def _map_messages(body: Mapping[str, Any], fields: dict[str, Any]) -> None:
    messages = body.get("messages")
    if messages is None:
        raise invalid("messages", "messages is required: a non-empty array of {role, content}")
    if isinstance(messages, list):
        messages = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    fields["messages"] = messages


def _message(message: object, path: str) -> object:
    if not isinstance(message, dict):
        return message
    for name, value in message.items():
        if name in MESSAGE_NEUTRAL and value:
            raise invalid(f"{path}.{name}", f"{path}.{name} is not supported yet; leave it out")
        if name not in MESSAGE_NEUTRAL and name not in {"role", "content", "name"}:
            unknown = refuse_unknown(name)
            raise invalid(f"{path}.{unknown.field}", unknown.message)
    turn = {name: message[name] for name in ("role", "content") if name in message}
    if turn.get("role") == "developer":
        turn["role"] = "system"
    if isinstance(turn.get("content"), list):
        parts = [_text_part(part, f"{path}.content[{i}]") for i, part in enumerate(turn["content"])]
        turn["content"] = "".join(parts)
    return turn


def _text_part(part: object, path: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise invalid(path, f"{path} must be {{'type': 'text', 'text': string}}; only text is supported")


def _map_prompt(body: Mapping[str, Any], fields: dict[str, Any], spelling: dict[str, str]) -> None:
    prompt = body.get("prompt")
    if prompt is None:
        raise invalid("prompt", "prompt is required: a non-empty string, or an array of token ids")
    spelling["prompt_token_ids"] = "prompt"  # noqa: S105 -- a field's name
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise invalid("prompt", "prompt must be one prompt; send one request for each of several")
        prompt = prompt[0]
    fields["prompt_token_ids" if isinstance(prompt, list) else "prompt"] = prompt


def _include_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options", {})
    if not isinstance(options, dict):
        raise invalid("stream_options", "stream_options must be an object")
    return _flag(options, "include_usage", "stream_options.")


def _flag(body: Mapping[str, Any], name: str, prefix: str = "") -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(prefix + name, f"{prefix}{name} must be true or false")
    return value
