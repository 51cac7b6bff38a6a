"""The scheduler's unary calls: kept records, cancels of requests owned elsewhere, and its health."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from kit.errors import Code, ServiceError
from kit.grpc import service_error
from services.gateway.adapters.lane_codec import decode_record, decode_text_spec
from services.gateway.adapters.verdict_codec import decode_kept
from services.gateway.app.ports import KeptRecord, State
from services.gateway.core.ids import generation_not_found
from tokenloom.api.scheduler.v1 import scheduler_pb2

if TYPE_CHECKING:
    from tokenloom.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

_TIMEOUT_S = 5.0


class SchedulerRecords:
    """`Records` over the scheduler's own service."""

    def __init__(self, stub: SchedulerServiceAsyncStub) -> None:
        self._stub = stub

    async def get(self, request_id: int, tenant_id: str) -> KeptRecord:
        """The record of a tenant's request; raises NOT_FOUND or RESULT_EXPIRED."""
        request = scheduler_pb2.GetGenerationRequest(request_id=request_id, tenant_id=tenant_id)
        try:
            return _record(await self._stub.GetGeneration(request, timeout=_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error

    async def cancel(self, request_id: int, tenant_id: str) -> State:
        """Cancel a tenant's request; the state found."""
        request = scheduler_pb2.CancelGenerationRequest(request_id=request_id, tenant_id=tenant_id)
        try:
            return State((await self._stub.CancelGeneration(request, timeout=_TIMEOUT_S)).state)
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error

    async def lanes(self) -> list[scheduler_pb2.LaneStatus]:
        """Every lane's accounting."""
        try:
            response = await self._stub.Inspect(scheduler_pb2.InspectRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error
        return list(response.lanes)


def _record(response: scheduler_pb2.GetGenerationResponse) -> KeptRecord:
    return KeptRecord(
        state=State(response.state),
        model_version=response.model_version,
        stop=decode_text_spec(response.text_spec),
        choices=[decode_record(choice) for choice in response.choice],
        verdict=decode_kept(response),
    )


def _error(error: grpc.aio.AioRpcError) -> ServiceError:
    found = service_error(error)
    if found.code is Code.NOT_FOUND:
        return generation_not_found()
    if found.reason == "RESULT_EXPIRED":
        return found
    return ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", "no scheduler is reachable", retry_after_ms=1000)
