"""gRPC servers and channels with the platform's limits, health, reflection and error contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kit.callers import Callers
from kit.grpc_errors import ErrorInterceptor, service_error, to_status
from kit.renewal import Renewed, tell_expiry
from kit.tls import Identity, KeyPair, matched, peer_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = [
    "LANE_MESSAGE_BYTES", "MESSAGE_BYTES", "Server", "channel", "service_error", "to_status"
]  # fmt: skip

MESSAGE_BYTES = 4 << 20
# Lane and run streams carry whole prompts of many requests at once.
LANE_MESSAGE_BYTES = 16 << 20
Options = tuple[tuple[str, Any], ...]


class Server:
    """A grpc.aio server with health, reflection and the error contract. Add servicers to `aio` first.

    With a `KeyPair` it speaks TLS to anyone; with an `Identity` to its peers, of whom each must show a
    certificate of a role that is `allowed` what it calls (`kit.callers`). Renewed files need no restart.
    """

    def __init__(
        self,
        listen: str,
        *,
        max_message_bytes: int = MESSAGE_BYTES,
        tls: Identity | KeyPair | None = None,
        allowed: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        options = (
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
            *_common_options(max_message_bytes),
        )
        mutual = isinstance(tls, Identity) and tls.require_client_cert
        errors = ErrorInterceptor(Callers(allowed or {}).check) if mutual else ErrorInterceptor()
        self.aio = grpc.aio.server(interceptors=[errors], options=options)
        self._listen, self._tls = listen, tls
        self._health = health.aio.HealthServicer()

    async def start(self, service_names: Sequence[str]) -> str:
        """Listen, not serving yet; returns the bound target, port 0 resolved."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.aio)
        reflection.enable_server_reflection(
            [*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.aio
        )
        for name in ("", *service_names):
            await self.set_serving(name, serving=False)
        if self._tls is None:
            port = self.aio.add_insecure_port(self._listen)
        else:
            port = self.aio.add_secure_port(self._listen, _server_credentials(self._tls))
        await self.aio.start()
        if self._listen.startswith("unix:"):
            return self._listen
        return f"{self._listen.rpartition(':')[0]}:{port}"

    async def set_serving(self, service_name: str, serving: bool) -> None:
        """Set a service's health; "" is the whole server."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(service_name, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Turn health off, refuse new calls, let running ones end within `grace_s`."""
        await self._health.enter_graceful_shutdown()
        await self.aio.stop(grace_s)


def channel(
    target: str,
    *,
    role: str = "",
    tls: Identity | None = None,
    max_message_bytes: int = MESSAGE_BYTES,
    options: Options = (),
) -> grpc.aio.Channel:
    """A channel to one of the platform's servers: keepalive every 30 s, reconnects within 2 s, no proxy.

    With `tls` the server must prove that it has the `role`, wherever it listens.
    """
    all_options = (
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Also the least that an attempt to connect is given, and a handshake takes its time.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.http2.max_pings_without_data", 0),
        # A replaced container comes back under its name with another address.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        *_common_options(max_message_bytes),
        *options,
    )
    if tls is None:
        return grpc.aio.insecure_channel(target, options=all_options)
    key, cert = matched(tls.pair)
    credentials = grpc.ssl_channel_credentials(tls.ca.read_bytes(), key, cert)
    named = ("grpc.ssl_target_name_override", peer_name(role))
    return grpc.aio.secure_channel(target, credentials, options=(named, *all_options))


def _server_credentials(tls: Identity | KeyPair) -> grpc.ServerCredentials:
    pair, ca = (tls.pair, tls.ca) if isinstance(tls, Identity) else (tls, None)
    mutual = isinstance(tls, Identity) and tls.require_client_cert

    def make() -> grpc.ServerCertificateConfiguration:
        tell_expiry(pair)
        return grpc.ssl_server_certificate_configuration([matched(pair)], ca.read_bytes() if ca else None)

    current = Renewed(tls.files, make)

    def renewed() -> Any:  # noqa: ANN401 - None means no change, which the library's types leave out
        return current.value if current.refresh() else None

    return grpc.dynamic_ssl_server_credentials(current.value, renewed, require_client_authentication=mutual)


def _common_options(max_message_bytes: int) -> Options:
    return (
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_metadata_size", 16 << 10),
    )
