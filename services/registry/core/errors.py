"""What the registry refuses."""

from __future__ import annotations

from kit.errors import Code, ServiceError


class RegistryError(ServiceError):
    """A refusal of the registry.

    RegistryError
    +-- NothingDeployedError    nothing is deployed yet that this worker may hold
    +-- UnknownLeaseError       the worker holds no lease: join again
    +-- SupersededError         another process joined under the worker's id
    +-- UnknownVersionError     no such verified version
    +-- DamagedArtifactError    the artifact's bytes are not those that were sealed
    +-- RouteConflictError      the route changed at the same time
    """


class NothingDeployedError(RegistryError):
    """Nothing is deployed yet that this worker may hold."""

    def __init__(self) -> None:
        super().__init__(
            Code.UNAVAILABLE, "NOTHING_DEPLOYED", "no such model is deployed; import one", "", 1000
        )


class UnknownLeaseError(RegistryError):
    """The worker holds no lease: it joins again."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(Code.NOT_FOUND, "UNKNOWN_LEASE", f"worker {worker_id} holds no lease: join again")


class SupersededError(RegistryError):
    """Another process joined under the worker's id."""

    def __init__(self, worker_id: str) -> None:
        message = f"another process joined as worker {worker_id}; give each worker an id of its own"
        super().__init__(Code.FAILED_PRECONDITION, "SUPERSEDED", message)


class UnknownVersionError(RegistryError):
    """No such verified version."""

    def __init__(self, model_version: str) -> None:
        super().__init__(
            Code.NOT_FOUND, "UNKNOWN_VERSION", f"{model_version} is not a registered model version"
        )


class DamagedArtifactError(RegistryError):
    """The artifact's bytes are not those that were sealed."""

    def __init__(self, problem: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, "DAMAGED_ARTIFACT", problem, "model_version")


class RouteConflictError(RegistryError):
    """The route changed at the same time."""

    def __init__(self, name: str) -> None:
        message = f"the route of {name} was changed by someone else at the same time; look and try again"
        super().__init__(Code.UNAVAILABLE, "ROUTE_CONFLICT", message, "", 100)
