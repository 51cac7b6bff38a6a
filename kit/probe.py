"""The health check of containers: `python -m kit.probe TARGET` exits with 0 when the server there serves."""

from __future__ import annotations

import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ANSWER_S = 3.0


def problem(target: str, answer_s: float = ANSWER_S) -> str | None:
    """Why the server at `target` does not serve; None when it does."""
    with grpc.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            status = stub.Check(health_pb2.HealthCheckRequest(), timeout=answer_s).status
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    if status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


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
