"""Prometheus metrics: the registry, the endpoint and the bucket borders shared by all services."""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client

from kit.errors import invalid

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

REGISTRY = prometheus_client.REGISTRY

# Seconds, from the OpenTelemetry semantic conventions for generative AI.
TTFT_BUCKETS = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0)  # fmt: skip
ITL_BUCKETS = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1.0, 2.5)  # fmt: skip
REQUEST_BUCKETS = tuple(0.01 * 2**i for i in range(14))
STEP_BUCKETS = (.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1.024, 2.048)  # fmt: skip

# Fine where a step plus 50 ms may end, on a GPU and on a CPU.
CANCEL_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.14, 0.16,
    0.18, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip


def serve(listen: str) -> tuple[WSGIServer, str]:
    """Serve `/metrics` on host:port from a thread; returns the server (`shutdown()` ends it) and its URL."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise invalid("metrics_listen", f"{listen!r} is not host:port")
    server, _ = prometheus_client.start_http_server(int(port), addr=host, registry=REGISTRY)
    return server, f"http://{host}:{server.server_port}/metrics"
