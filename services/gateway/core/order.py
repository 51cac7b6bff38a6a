"""What a request asks for, as every gateway that owns or follows it knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.gateway.core.limits import Priority

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; `top_logprobs` is None when no log-probabilities were asked for."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """One request. Times are monotonic seconds of this gateway."""

    request_id: int
    tenant_id: str
    model_version: str
    tokenizer_version: str
    prompt_token_ids: Sequence[int]
    max_output_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.STANDARD
    resume: bool = False  # goes on after a loss though tokens were sent
    resume_lease_s: float = 0.0  # runs on for so long without a reader; 0: ends with its last one
    received: float = 0.0
    deadline: float | None = None
