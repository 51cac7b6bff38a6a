"""The health check of containers: `python -m kit.probe TARGET` exits with 0 when the server there serves.

It runs beside the service, in its environment. Where that names certificates, the server must show them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit.tls import KeyPair, matched, names

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER_S = 3.0
# A gateway is asked where its callers ask it.
_PAIRS = (("PUBLIC_TLS_CERT", "PUBLIC_TLS_KEY"), ("TLS_CERT", "TLS_KEY"))


def problem(
    target: str, answer_s: float = ANSWER_S, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Why the server at `target` does not serve; None when it does."""
    try:
        channel = _channel(target, _pair(environment))
    except OSError as error:
        return f"its certificate cannot be read: {error}"
    with channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            status = stub.Check(health_pb2.HealthCheckRequest(), timeout=answer_s).status
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    if status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def _pair(environment: Mapping[str, str]) -> KeyPair | None:
    for cert, key in _PAIRS:
        paths = environment.get(f"TOKENLOOM_{cert}"), environment.get(f"TOKENLOOM_{key}")
        if paths[0] and paths[1]:
            return KeyPair(Path(paths[0]), Path(paths[1]))
    return None


def _channel(target: str, pair: KeyPair | None) -> grpc.Channel:
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if pair is None:
        return grpc.insecure_channel(target, options=options)
    key, cert = matched(pair)
    # The certificate vouches for itself: whoever made it, this very one must be shown.
    options.append(("grpc.ssl_target_name_override", names(pair)[0].replace("*", "probe")))
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(cert, key, cert), options=options)


def main() -> int:
    """Probe the one target of the command line."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m kit.probe TARGET\n")
        return 2
    if found := problem(sys.argv[1]):
        sys.stderr.write(f"{sys.argv[1]} does not serve: {found}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
