"""The ledger, read from the usage service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from kit.errors import Code, ServiceError, invalid
from kit.grpc import service_error

if TYPE_CHECKING:
    from tokenloom.api.usage.v1 import usage_pb2
    from tokenloom.api.usage.v1.usage_pb2_grpc import UsageServiceAsyncStub

_TIMEOUT_S = 10.0


class UsageClient:
    """Lists a tenant's ledger rows."""

    def __init__(self, stub: UsageServiceAsyncStub) -> None:
        self._stub = stub

    async def list(self, request: usage_pb2.ListUsageRequest) -> usage_pb2.ListUsageResponse:
        """One page of rows; raises what is wrong with the page token, or that it is away."""
        try:
            return await self._stub.ListUsage(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            found = service_error(error)
            if found.field == "page_token":
                message = "pageToken must be the nextPageToken of an earlier answer"
                raise invalid("pageToken", message) from error
            raise ServiceError(
                Code.UNAVAILABLE, "USAGE_UNAVAILABLE", "the ledger cannot be read now", retry_after_ms=2000
            ) from error
