"""What the model and the plan allow a valid request."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.gateway.core.spec import GenerationSpec
    from services.gateway.core.tokenizing import ModelTokenizer

DEFAULT_OUTPUT_TOKENS = 512


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
    raise NotImplementedError


def effective_priority(plan: Priority, asked: str | None) -> Priority:
    """The class a request runs in: what it asked for, never above its plan's."""
    return plan if asked is None else max(plan, Priority[asked.upper()])
