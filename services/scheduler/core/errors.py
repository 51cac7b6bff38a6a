"""What a lane raises.

LaneError
+-- AdmissionError    a request is not taken: door or queue
+-- StepOutOfOrder    a worker skipped a step: it must be treated as lost
+-- MalformedResult   the columns of a worker's result disagree: likewise
"""

from __future__ import annotations

from kit.errors import Code, ServiceError

RETRY_AFTER_MS = 2_000


class LaneError(Exception):
    """Base of everything a lane raises on purpose."""


class AdmissionError(LaneError):
    """A request is not taken; `reason` is one of the refusal contract."""

    def __init__(
        self, reason: str, message: str, field: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class StepOutOfOrder(LaneError):  # noqa: N818 - says what happened
    """A result came for a step that is not the oldest one in flight."""


class MalformedResult(LaneError):  # noqa: N818 - says what happened
    """A result whose columns disagree."""


def unavailable(reason: str, message: str) -> ServiceError:
    """Refuse for now: capacity may come back."""
    return ServiceError(Code.UNAVAILABLE, reason, message, retry_after_ms=RETRY_AFTER_MS)
