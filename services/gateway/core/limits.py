"""What the model and the plan allow a valid request."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.errors import invalid
from services.gateway.core.validation import INPUTS

if TYPE_CHECKING:
    from services.gateway.core.spec import GenerationSpec
    from services.gateway.core.tokenizing import ModelTokenizer

DEFAULT_OUTPUT_TOKENS = 512
_TOO_LONG = "CONTEXT_TOO_LONG"


class Priority(enum.IntEnum):
    """A class of requests; numbered as in the inference proto, falling in urgency."""

    INTERACTIVE = 1
    STANDARD = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the scheduler needs of a spec and its model."""

    prompt_token_ids: list[int]
    max_output_tokens: int
    stop_token_ids: tuple[int, ...]


def prepare(
    spec: GenerationSpec, tokenizer: ModelTokenizer, default_output_tokens: int = DEFAULT_OUTPUT_TOKENS
) -> Prepared:
    """Tokenize and bound a request; takes CPU time. Raises CONTEXT_TOO_LONG naming what is allowed.

    A prompt may have context - 1 tokens. A missing output limit is the default, capped by the context;
    one that was asked for and does not fit is refused.
    """
    ids = tokenizer.encode(spec)
    _check_prompt(spec, ids, tokenizer)
    return Prepared(
        prompt_token_ids=ids,
        max_output_tokens=_output_limit(spec, len(ids), tokenizer.context_length, default_output_tokens),
        stop_token_ids=() if spec.ignore_eos else tokenizer.eos_token_ids,
    )


def effective_priority(plan: Priority, asked: str | None) -> Priority:
    """The class a request runs in: what it asked for, never above its plan's."""
    return plan if asked is None else max(plan, Priority[asked.upper()])


def _check_prompt(spec: GenerationSpec, ids: list[int], tokenizer: ModelTokenizer) -> None:
    field = spec.named(_input_of(spec))
    allowed = tokenizer.context_length - 1
    if not ids:
        raise invalid(field, f"{field} has no tokens; at least 1 is needed")
    if len(ids) > allowed:
        raise invalid(field, f"{field} has {len(ids)} tokens; the model takes at most {allowed}", _TOO_LONG)
    vocabulary = len(tokenizer.vocabulary)
    if spec.prompt_token_ids is not None and max(ids) >= vocabulary:
        position = next(i for i, token_id in enumerate(ids) if token_id >= vocabulary)
        raise invalid(f"{field}[{position}]", f"token ids of this model are 0 to {vocabulary - 1}")


def _output_limit(spec: GenerationSpec, prompt: int, context: int, default: int) -> int:
    allowed = context - prompt
    if spec.max_output_tokens is None:
        return min(default, allowed)
    if spec.max_output_tokens > allowed:
        field = spec.named("max_output_tokens")
        detail = f"after a prompt of {prompt} tokens the context of {context} leaves at most {allowed}"
        raise invalid(field, f"{field} is {spec.max_output_tokens}; {detail}", _TOO_LONG)
    return spec.max_output_tokens


def _input_of(spec: GenerationSpec) -> str:
    return next(name for name in INPUTS if getattr(spec, name) is not None)
