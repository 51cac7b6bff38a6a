"""What a caller catches, and how a gRPC status becomes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    import grpc

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass
class TokenloomError(Exception):
    """A refusal or a failure, as the platform reported it.

    `code` is the gRPC status name and `reason` the machine-readable cause, e.g. "QUEUE_FULL". `field` names
    the request's field at fault. `retry_after` is in seconds, where a retry can help.
    """

    code: str
    reason: str
    message: str
    field: str = ""
    retry_after: float | None = None

    def __str__(self) -> str:
        """Reads as `REASON: message`."""
        return f"{self.reason}: {self.message}"


def error_from(error: grpc.aio.AioRpcError) -> TokenloomError:
    """Read a failed call; a status without details keeps its code as the reason."""
    code = error.code().name
    result = TokenloomError(code, code, error.details() or "the call failed")
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            _read_details(result, status_pb2.Status.FromString(value))
    return result


def _read_details(result: TokenloomError, status: status_pb2.Status) -> None:
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    bad = error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Unpack(info):
            result.reason = info.reason
        elif detail.Unpack(retry):
            result.retry_after = retry.retry_delay.ToMilliseconds() / 1000
        elif detail.Unpack(bad) and bad.field_violations:
            result.field = bad.field_violations[0].field
