"""Who may call what among services: decided by the name in the certificate that a client showed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.errors import Code, ServiceError
from kit.tls import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]

_NAMES = "x509_subject_alternative_name"
# Health and reflection are for whoever is of the platform.
_COMMON = "grpc."


class Callers:
    """The roles that may call each service, `package.Service`, or a method of it, `package.Service/Method`.

    What is not listed nobody may call.
    """

    def __init__(self, allowed: Mapping[str, Collection[str]]) -> None:
        self._allowed = allowed

    def check(self, method: str, context: Context) -> None:
        """Refuse a call: UNAUTHENTICATED without a role, else PERMISSION_DENIED."""
        found = _roles(context)
        if not found:
            message = f"the client certificate has no name below {DOMAIN}"
            raise ServiceError(Code.UNAUTHENTICATED, "ROLE_REQUIRED", message)
        name = method.removeprefix("/")
        if name.startswith(_COMMON):
            return
        allowed = self._allowed.get(name, self._allowed.get(name.partition("/")[0], ()))
        if found.isdisjoint(allowed):
            message = f"{name} is for {', '.join(allowed) or 'nobody'}, not for {', '.join(sorted(found))}"
            raise ServiceError(Code.PERMISSION_DENIED, "ROLE_NOT_ALLOWED", message)


def _roles(context: Context) -> set[str]:
    suffix = f".{DOMAIN}"
    names = (name.decode(errors="replace") for name in context.auth_context().get(_NAMES, ()))
    return {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
