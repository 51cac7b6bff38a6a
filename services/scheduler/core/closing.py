"""How the scheduler closes a request that nobody owns any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.scheduler.core.messages import FinishReason
from services.scheduler.core.records import Verdict

if TYPE_CHECKING:
    from services.scheduler.core.records import Record


@dataclass(frozen=True, slots=True)
class Closing:
    """A request that the scheduler closes in its vanished owner's place."""

    record: Record
    verdict: Verdict


def verdict_on(record: Record, owner_epoch: int, now: float) -> Verdict:
    """Judge an ended record as its owner would have: the gravest end of its choices is the request's."""
    choices, end, accepted_at = record.choices, record.end, record.order.accepted_at
    reasons = tuple(choice.finish_reason or FinishReason.CANCELLED for choice in choices)
    first_at = record.first_token_at
    return Verdict(
        owner_epoch=owner_epoch,
        finish_reason=max(reasons),
        output_tokens=tuple(len(choice.token_ids) for choice in choices),
        input_tokens=end.input_tokens if end is not None else 0,
        cached_tokens=end.cached_tokens if end is not None else 0,
        queue_us=_us(end.queue_s) if end is not None else 0,
        ttft_us=_us(first_at - accepted_at) if first_at is not None else 0,
        total_us=_us(now - accepted_at),
        error_reason=next((choice.error_reason for choice in choices if choice.error_reason), ""),
        choice_reasons=reasons,
    )


def void(record: Record, owner_epoch: int, now: float) -> Verdict:
    """Judge a request of which nobody was told: it ends with nothing, and nobody pays."""
    nothing = len(record.choices)
    return Verdict(
        owner_epoch=owner_epoch,
        finish_reason=FinishReason.ERROR,
        output_tokens=(0,) * nothing,
        total_us=_us(now - record.order.accepted_at),
        error_reason="NEVER_OPENED",
        choice_reasons=(FinishReason.ERROR,) * nothing,
    )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
