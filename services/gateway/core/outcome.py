"""How a request ended: one reason over its choices, what is billed, and the error of a failed one."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterable


# Of a request that ended before anybody was told of it; the scheduler says so too.
NEVER_OPENED = "NEVER_OPENED"
OWNERSHIP_LOST = "OWNERSHIP_LOST"
# Failures of the platform's present state: another try may succeed.
_FOR_NOW = frozenset(
    {NEVER_OPENED, "NO_CAPACITY", "DRAINING", "IDEMPOTENCY_UNAVAILABLE", "USAGE_BACKPRESSURE"}
)


class FinishReason(enum.IntEnum):
    """Why a choice or request ended; numbered as in the inference proto, rising in severity."""

    STOP = 1
    LENGTH = 2
    DEADLINE = 3
    CANCELLED = 4
    INCOMPLETE = 5
    ERROR = 6

    @property
    def label(self) -> str:
        """The word used in JSON."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Timings:
    """Moments of a request, in seconds on one monotonic clock; `first_token` is None without a token."""

    received: float
    ended: float
    first_token: float | None = None
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Closed:
    """The terminal record of a request: what `done` says and the ledger bills."""

    finish_reason: FinishReason
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    billable_tokens: int
    queue_ms: float
    ttft_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an owner closed a request: all that another gateway needs to say the same."""

    closed: Closed
    output_tokens: tuple[int, ...]
    reasons: tuple[FinishReason, ...]
    error_reason: str = ""


def request_reason(reasons: Iterable[FinishReason]) -> FinishReason:
    """The most severe reason of a request's choices; there is at least one."""
    return max(reasons)


def close(
    reasons: Iterable[FinishReason],
    output_tokens: Iterable[int],
    timings: Timings,
    *,
    input_tokens: int,
    cached_tokens: int = 0,
) -> Closed:
    """Close a request. `input_tokens` is 0 when no prefill step ran; a failed request bills nothing."""
    reason = request_reason(reasons)
    output = sum(output_tokens)
    first = timings.received if timings.first_token is None else timings.first_token
    return Closed(
        finish_reason=reason,
        input_tokens=input_tokens,
        cached_tokens=min(cached_tokens, input_tokens),
        output_tokens=output,
        billable_tokens=0 if reason is FinishReason.ERROR else input_tokens + output,
        queue_ms=_milliseconds(timings.queue_s),
        ttft_ms=_milliseconds(first - timings.received),
        total_ms=_milliseconds(timings.ended - timings.received),
    )


def void(choices: int) -> Verdict:
    """The verdict on a request of which nobody was told: nobody pays."""
    nothing = (0,) * choices
    closed = close([FinishReason.ERROR], nothing, Timings(0.0, 0.0), input_tokens=0)
    return Verdict(closed, nothing, (FinishReason.ERROR,) * choices, NEVER_OPENED)


def error_of(error_reason: str = "") -> ServiceError:
    """The error that ends a request which finished with ERROR, for the reason its owner closed it with."""
    reason = error_reason or "INTERNAL"
    message = "the generation failed; nothing is billed for it"
    if reason in _FOR_NOW:
        return ServiceError(Code.UNAVAILABLE, reason, message, retry_after_ms=1000)
    return ServiceError(Code.INTERNAL, reason, message)


def ownership_lost() -> ServiceError:
    """The error that a caller gets from a gateway that may not say how the request ended."""
    message = "the gateway was cut off and no longer owns the request; ask for its id to see how it ended"
    return ServiceError(Code.UNAVAILABLE, OWNERSHIP_LOST, message)


def handed_over() -> ServiceError:
    """The error that a caller gets from a gateway that leaves while the request goes on."""
    message = "the gateway shuts down; attach with the request id at another gateway"
    return ServiceError(Code.UNAVAILABLE, "DRAINING", message, retry_after_ms=0)


def cancelled() -> ServiceError:
    """The error of a request that was cancelled before it was accepted."""
    return ServiceError(Code.CANCELLED, "CANCELLED", "the request was cancelled")


def no_scheduler() -> ServiceError:
    """The error while there is no scheduler to ask."""
    return ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", "no scheduler is reachable", retry_after_ms=1000)


def _milliseconds(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 3)
