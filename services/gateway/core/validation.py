"""From untrusted data to a `GenerationSpec`, or to a refusal that names the field and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from kit.errors import invalid
from services.gateway.core.spec import INT32_MAX, MAX_CHOICES, ChatMessage, GenerationSpec, PromptSpec

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from kit.errors import ServiceError

Naming = Literal["camel", "snake"]
Spelling = Callable[[str], str]
Spec = TypeVar("Spec", bound=PromptSpec)

# Fields of the contract that are not served yet, with the value that changes nothing.
LATER: dict[str, object] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "min_tokens": 0,
}
INPUTS = ("prompt", "prompt_token_ids", "messages")
_MAX_NAME_CHARS = 64
_START = re.compile(r"[0-9]{1,10}(,[0-9]{1,10})*", re.ASCII)
_MAX_START_CHARS = 11 * MAX_CHOICES
_START_ALLOWED = f"a token's number from 0 to {INT32_MAX}, or one for each choice, separated by commas"
_SPELLINGS: dict[Naming, Spelling] = {"camel": to_camel, "snake": str}


def parse_json(body: bytes) -> object:
    """Decode a JSON body; refuses invalid UTF-8 and nesting beyond reason.

    NaN and Infinity pass, which JSON has not: the field that holds one is then refused by its name.
    """
    try:
        document: object = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise invalid("body", f"the body must be UTF-8; byte {error.start} is not") from None
    except json.JSONDecodeError as error:
        raise invalid("body", f"the body must be JSON: {error.msg} at character {error.pos}") from None
    except ValueError:
        raise invalid("body", "the body must be JSON with numbers of sensible length") from None
    except RecursionError:
        raise invalid("body", "the body is nested too deeply") from None
    return document


def parse_generation(data: object, naming: Naming = "camel") -> GenerationSpec:
    """Validate a generation: `camel` for the native JSON, `snake` for a gRPC request's set fields.

    `data` is a mapping of field names to plain values (a gRPC servicer leaves out what is unset; enums
    come as their lower-case word, `messages` as a list of {"role", "content"}). A null is as good as
    missing. Raises `ServiceError` INVALID_ARGUMENT.
    """
    return _parse(GenerationSpec, data, _SPELLINGS[naming])


def parse_prompt(data: object, naming: Naming = "camel") -> PromptSpec:
    """Validate what CountTokens takes: `model` and one of `prompt` and `messages`."""
    return _parse(PromptSpec, data, _SPELLINGS[naming])


def parse_start(text: str, field: str) -> tuple[int, ...]:
    """Where a reader starts: `N`, the first token wanted of every choice, or `N,M,...`, one for each."""
    if len(text) <= _MAX_START_CHARS and _START.fullmatch(text):
        return check_start(tuple(map(int, text.split(","))), field)
    raise invalid(field, f"{field} must be {_START_ALLOWED}")


def check_start(indices: tuple[int, ...], field: str) -> tuple[int, ...]:
    """Refuse what can be no choice's next token."""
    if len(indices) > MAX_CHOICES or not all(0 <= index <= INT32_MAX for index in indices):
        raise invalid(field, f"{field} must be {_START_ALLOWED}")
    return indices


def start_of_each(indices: tuple[int, ...], choices: int, field: str) -> tuple[int, ...]:
    """The first token wanted of each of so many choices; nothing said means all."""
    if len(indices) not in {0, 1, choices}:
        raise invalid(field, f"{field} must have one index, or one for each of {choices} choices")
    return indices if len(indices) == choices else (indices or (0,)) * choices


def body_object(data: object) -> Mapping[str, Any]:
    """`data` as a mapping of its non-null members."""
    if not isinstance(data, Mapping):
        raise invalid("body", "the body must be a JSON object")
    return {key: value for key, value in data.items() if value is not None}


def build(model: type[Spec], fields: Mapping[str, Any], spelling: Spelling) -> Spec:
    """Validate canonical fields; refusals use the caller's `spelling` of their names."""
    try:
        spec = model.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refusal(details[0], model, spelling) from None
    spec._spelling = spelling
    given = [name for name in _inputs(model) if getattr(spec, name) is not None]
    if len(given) != 1:
        choices = ", ".join(map(spelling, _inputs(model)))
        raise invalid(spelling((given or ["prompt"])[0]), f"exactly one of {choices} must be given")
    return spec


def refuse_unless_neutral(name: str, value: object, neutral: object) -> None:
    """Refuse a field that is not served yet, unless its value changes nothing."""
    if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):
        raise invalid(name, f"{name} is not supported yet; leave it out")


def refuse_unknown(name: object) -> ServiceError:
    """The refusal of a field that does not exist."""
    printable = ascii(name)[1:-1] if isinstance(name, str) else "?"
    short = printable[:_MAX_NAME_CHARS]
    return invalid(short, f"{short} is not a field of this request")


def _parse(model: type[Spec], data: object, spelling: Spelling) -> Spec:
    canonical = {spelling(name): name for name in model.model_fields}
    later = {spelling(name): neutral for name, neutral in LATER.items() if model is GenerationSpec}
    fields: dict[str, Any] = {}
    for name, value in body_object(data).items():
        if name in later:
            refuse_unless_neutral(name, value, later[name])
        elif name in canonical:
            fields[canonical[name]] = value
        else:
            raise refuse_unknown(name)
    _refuse_unknown_in_messages(fields.get("messages"))
    return build(model, fields, spelling)


def _refuse_unknown_in_messages(messages: object) -> None:
    """Stop at the first unknown member: the model would report every one of them."""
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        for name in message if isinstance(message, dict) else ():
            if name not in ChatMessage.model_fields:
                unknown = refuse_unknown(name)
                raise invalid(f"messages[{index}].{unknown.field}", unknown.message)


def _refusal(error: ErrorDetails, model: type[PromptSpec], spelling: Spelling) -> ServiceError:
    root, *rest = error["loc"]
    name = spelling(str(root))
    path = name + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
    described: type[BaseModel] = model
    leaf = str(root)
    if rest and isinstance(rest[-1], str):
        described, leaf, name = ChatMessage, rest[-1], path
    allowed = described.model_fields[leaf].description
    if error["type"] == "missing":
        return invalid(path, f"{path} is required: {allowed}")
    prefix = "" if name == path else f"{path} is not allowed: "
    return invalid(path, f"{prefix}{name} must be {allowed}")


def _inputs(model: type[PromptSpec]) -> list[str]:
    return [name for name in INPUTS if name in model.model_fields]
