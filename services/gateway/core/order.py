"""What a request asks for, as every gateway that owns or follows it knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; `top_logprobs` is None when no log-probabilities were asked for."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    top_logprobs: int | None = None
