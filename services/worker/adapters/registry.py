"""The worker's side of the registry: join, keep the lease, survive the registry."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from kit import log
from kit.backoff import jittered
from kit.errors import Code
from kit.grpc import service_error
from tokenloom.api.registry.v1 import registry_pb2, registry_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenloom.api.worker.v1 import worker_pb2

CALL_S = 5.0
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 5.0
RENEWALS_PER_LEASE = 3
_log = log.get("registry")


@dataclass(frozen=True)
class Identity:
    """Who this process is to the registry; `model` is the one name it is kept for, if any."""

    worker_id: str
    target: str
    incarnation: str
    model: str = ""


class RegistryLink:
    """Holds the worker's lease. While the registry is away the worker keeps serving and joins again later."""

    def __init__(
        self,
        stub: registry_pb2_grpc.RegistryServiceAsyncStub,
        identity: Identity,
        state: Callable[[], worker_pb2.WorkerState],
    ) -> None:
        self._stub = stub
        self._identity = identity
        self._state = state
        self._changed = asyncio.Event()
        self._lease_s = LAST_RETRY_S
        self._away = False

    async def join(self) -> registry_pb2.ModelVersion:
        """Join, however long it takes, and return the model version to load."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                return await self._join()
            except grpc.aio.AioRpcError as error:
                self._report(error)
            await asyncio.sleep(jittered(retry_s))
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def changed(self) -> None:
        """Report the state now instead of at the next renewal."""
        self._changed.set()

    async def keep(self, assigned: str, on_other: Callable[[str], None]) -> None:
        """Renew for ever; join again when the lease is unknown, and tell `on_other` of another assignment."""
        while True:
            await self._pause()
            try:
                await self._renew()
                self._away = False
            except grpc.aio.AioRpcError as error:
                if service_error(error).code is not Code.NOT_FOUND:
                    self._report(error)
                    continue
                _log.info("joining again")
                model = await self.join()
                self._changed.set()
                if model.model_version != assigned:
                    on_other(model.model_version)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._lease_s / RENEWALS_PER_LEASE):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def _join(self) -> registry_pb2.ModelVersion:
        me = self._identity
        request = registry_pb2.JoinWorkerRequest(
            worker_id=me.worker_id, target=me.target, incarnation=me.incarnation, model=me.model
        )
        response = await self._stub.JoinWorker(request, timeout=CALL_S)
        self._lease_s = response.lease_us / 1e6
        self._away = False
        _log.info("joined", model_version=response.model.model_version, lease_s=self._lease_s)
        return response.model

    async def _renew(self) -> None:
        me = self._identity
        request = registry_pb2.RenewLeaseRequest(
            worker_id=me.worker_id, incarnation=me.incarnation, state=self._state()
        )
        await self._stub.RenewLease(request, timeout=CALL_S)

    def _report(self, error: grpc.aio.AioRpcError) -> None:
        if not self._away:
            _log.warning("registry not available, retrying", reason=service_error(error).message)
        self._away = True
