"""A small real service for the supervisor's tests: gRPC health, and a diary of what happens to it.

Arguments: TARGET NAME DIARY. The environment decides how it behaves: FAIL (exit code at once), STUBBORN
(ignore SIGTERM).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> None:
    target, name, diary = sys.argv[1:]
    sys.stdout.write(f"{name} speaks\n")
    sys.stdout.flush()
    if code := os.environ.get("FAIL"):
        sys.exit(int(code))
    stop = threading.Event()
    signal.signal(
        signal.SIGTERM, (lambda *_: None) if os.environ.get("STUBBORN") else (lambda *_: stop.set())
    )
    # A grandchild in the same group must not outlive the service.
    if os.environ.get("GRANDCHILD"):
        child = subprocess.Popen(["sleep", "600"])
        Path(diary).with_suffix(".grandchild").write_text(str(child.pid))
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(target)
    server.start()
    stop.wait()
    with Path(diary).open("a") as file:
        file.write(f"{name} drained\n")
    server.stop(0).wait()


if __name__ == "__main__":
    main()
