"""The one refusal contract, free of any transport.

Every service raises `ServiceError` (or a subclass of its own); `kit.grpc` and the gateway's HTTP faces
turn it into a status. A refusal names a reason, what is wrong and what is allowed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Code(enum.Enum):
    """Transport-neutral status; the value is the HTTP status, the name the gRPC one."""

    INVALID_ARGUMENT = 400
    UNAUTHENTICATED = 401
    PERMISSION_DENIED = 403
    NOT_FOUND = 404
    ALREADY_EXISTS = 409
    FAILED_PRECONDITION = 410
    RESOURCE_EXHAUSTED = 429
    CANCELLED = 499
    INTERNAL = 500
    UNAVAILABLE = 503
    DEADLINE_EXCEEDED = 504


@dataclass
class ServiceError(Exception):
    """A refusal or failure that a caller may see.

    ServiceError
    +-- kit.config.ConfigError          a service cannot start
    +-- services.*.core.errors.*        one tree per service
    """

    code: Code
    reason: str
    message: str
    field: str = ""
    retry_after_ms: int | None = None

    def __str__(self) -> str:
        """Reads as `REASON: message`."""
        return f"{self.reason}: {self.message}"


def invalid(field: str, message: str, reason: str = "INVALID_REQUEST") -> ServiceError:
    """Refuse `field`; the message says what is allowed."""
    return ServiceError(Code.INVALID_ARGUMENT, reason, message, field)
