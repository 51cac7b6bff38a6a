"""RegistryService: protos to the registry's own words and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kit.errors import invalid
from services.registry.core.assignments import WorkerState
from tokenloom.api.registry.v1 import registry_pb2, registry_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2

if TYPE_CHECKING:
    import grpc

    from services.registry.adapters.catalog import Version
    from services.registry.registry import Registry

    Context = grpc.aio.ServicerContext[Any, Any]

_STATES = {
    worker_pb2.WORKER_STATE_LOADING: WorkerState.LOADING,
    worker_pb2.WORKER_STATE_READY: WorkerState.READY,
    worker_pb2.WORKER_STATE_DRAINING: WorkerState.DRAINING,
}
# The id is a NATS subject token.
_WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TARGET_CHARS = 256
_INCARNATION_CHARS = 128


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """Converts, checks fields, and calls."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def RegisterModel(  # noqa: N802 - gRPC names
        self, request: registry_pb2.RegisterModelRequest, context: Context
    ) -> registry_pb2.RegisterModelResponse:
        """Verify an imported artifact and make it a version."""
        version = await self._registry.register(request.model_version)
        current = any(known is version and routed for known, routed in self._registry.models())
        return registry_pb2.RegisterModelResponse(model=_model(version, current=current))

    async def ListModels(  # noqa: N802
        self, request: registry_pb2.ListModelsRequest, context: Context
    ) -> registry_pb2.ListModelsResponse:
        """Return every version."""
        models = [_model(version, current=current) for version, current in self._registry.models()]
        return registry_pb2.ListModelsResponse(models=models)

    async def SetRoute(  # noqa: N802
        self, request: registry_pb2.SetRouteRequest, context: Context
    ) -> registry_pb2.SetRouteResponse:
        """Make a version its name's current one."""
        await self._registry.set_route(request.model_version)
        return registry_pb2.SetRouteResponse()

    async def JoinWorker(  # noqa: N802
        self, request: registry_pb2.JoinWorkerRequest, context: Context
    ) -> registry_pb2.JoinWorkerResponse:
        """Give a worker its assignment and a lease."""
        _check_worker(request.worker_id, request.incarnation)
        if not 0 < len(request.target) <= _TARGET_CHARS:
            raise invalid("target", f"must have 1 to {_TARGET_CHARS} characters")
        version, current = self._registry.join(
            request.worker_id, request.target, request.incarnation, request.model
        )
        return registry_pb2.JoinWorkerResponse(
            model=_model(version, current=current), lease_us=int(self._registry.lease_s * 1e6)
        )

    async def RenewLease(  # noqa: N802
        self, request: registry_pb2.RenewLeaseRequest, context: Context
    ) -> registry_pb2.RenewLeaseResponse:
        """Keep a lease."""
        _check_worker(request.worker_id, request.incarnation)
        state = _STATES.get(request.state)
        if state is None:
            raise invalid("state", "must be LOADING, READY or DRAINING")
        self._registry.renew(request.worker_id, request.incarnation, state)
        return registry_pb2.RenewLeaseResponse()


def _check_worker(worker_id: str, incarnation: str) -> None:
    if not _WORKER_ID.fullmatch(worker_id):
        raise invalid("worker_id", "must be 1 to 64 letters, digits, `_` or `-`")
    if not 0 < len(incarnation) <= _INCARNATION_CHARS:
        raise invalid("incarnation", f"must have 1 to {_INCARNATION_CHARS} characters")


def _model(version: Version, *, current: bool) -> registry_pb2.ModelVersion:
    manifest = version.manifest
    return registry_pb2.ModelVersion(
        model_version=manifest.model_version,
        artifact_uri=version.uri,
        family=manifest.family,
        context_length=manifest.context_length,
        tokenizer_version=manifest.tokenizer_version,
        source=manifest.source,
        licence=manifest.licence,
        size_bytes=manifest.size_bytes,
        current=current,
    )
