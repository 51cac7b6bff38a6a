"""Every way in which a call can end without its answer: statuses, codes and reasons."""

from __future__ import annotations

from typing import NamedTuple

from kit.errors import Code
from services.gateway.adapters.http.openapi.schema import (
    COUNT,
    TEXT,
    Schema,
    nullable,
    record,
    words,
)
from services.gateway.core.outcome import FinishReason


class Refusal(NamedTuple):
    """One HTTP status; `reasons` is empty where the set is open."""

    status: int
    code: Code
    when: str
    reasons: tuple[str, ...] = ()


BAD_INPUT = Refusal(
    400,
    Code.INVALID_ARGUMENT,
    "malformed or out of range; `field` names what is at fault",
    ("INVALID_REQUEST", "CONTEXT_TOO_LONG"),
)
BAD_KEY = Refusal(401, Code.UNAUTHENTICATED, "no key, or a bad one", ("INVALID_API_KEY",))
NOT_FOUND = Refusal(404, Code.NOT_FOUND, "not this tenant's, or not there at all", ("NOT_FOUND",))
NOT_ACCEPTABLE = Refusal(
    406, Code.INVALID_ARGUMENT, "`Accept` leaves no form to answer in", ("INVALID_REQUEST",)
)
CONFLICT = Refusal(
    409,
    Code.ALREADY_EXISTS,
    "the idempotency key was used with another body",
    ("IDEMPOTENCY_CONFLICT",),
)
EXPIRED = Refusal(410, Code.FAILED_PRECONDITION, "the result is no longer kept", ("RESULT_EXPIRED",))
TOO_LARGE = Refusal(413, Code.INVALID_ARGUMENT, "the body is too large", ("INVALID_REQUEST",))
CONTENDED = Refusal(
    429,
    Code.RESOURCE_EXHAUSTED,
    "limited or contended; `Retry-After` says when it may be admitted",
    ("TENANT_RATE_LIMIT", "BUDGET_EXHAUSTED", "QUEUE_FULL", "KV_EXHAUSTED", "DEADLINE_INFEASIBLE"),
)
CANCELLED = Refusal(499, Code.CANCELLED, "cancelled before its answer was whole", ("CANCELLED",))
FAILED = Refusal(500, Code.INTERNAL, "the request failed; nothing is billed for it")
NO_CAPACITY = Refusal(
    503,
    Code.UNAVAILABLE,
    "no capacity now; `Retry-After` says when to ask again",
    (
        *("NO_CAPACITY", "DRAINING", "USAGE_BACKPRESSURE", "USAGE_UNAVAILABLE", "LEDGER_UNAVAILABLE"),
        *("IDEMPOTENCY_UNAVAILABLE", "OWNERSHIP_LOST", "INCOMPLETE"),
    ),
)
TOO_LATE = Refusal(504, Code.DEADLINE_EXCEEDED, "the deadline was past on arrival", ("DEADLINE_EXCEEDED",))

READING = (BAD_INPUT, BAD_KEY, NOT_FOUND, FAILED, NO_CAPACITY)
NAMING = (*READING, EXPIRED)
FOLLOWING = (*NAMING, NOT_ACCEPTABLE)
GENERATING = (*NAMING, CONFLICT, TOO_LARGE, CONTENDED, CANCELLED, TOO_LATE)


def native_error(refusal: Refusal | None = None) -> Schema:
    """The native face's error body; of one status, or of any."""
    code = words(*([refusal.code.name] if refusal else [code.name for code in Code]))
    members = {"code": code, "reason": _reason(refusal), "message": TEXT}
    return record({"error": record(members, {"field": TEXT, "retryAfterMs": COUNT})})


def openai_error(refusal: Refusal | None = None) -> Schema:
    """The OpenAI faces' error body; of one status, or of any."""
    members = {
        "message": TEXT,
        "type": words("invalid_request_error", "rate_limit_error", "insufficient_quota", "server_error"),
        "param": nullable(TEXT),
        "code": TEXT,
        "reason": _reason(refusal),
    }
    ending = words(*(reason.label for reason in FinishReason))
    return record({"error": record(members, {"retry_after_ms": COUNT, "x_tokenloom_finish_reason": ending})})


def _reason(refusal: Refusal | None) -> Schema:
    return words(*refusal.reasons) if refusal and refusal.reasons else TEXT
