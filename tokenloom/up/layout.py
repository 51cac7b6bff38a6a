"""Who runs where: the processes of a platform, their addresses and their environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tokenloom
from tokenloom.up import nats
from tokenloom.up.child import Spec
from tokenloom.up.files import Endpoint, Secrets
from tokenloom.up.ports import HOST, Ports
from tokenloom.up.probes import GrpcProbe
from tokenloom.up.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenloom.up.options import Options

# Each stage is stopped once the one before is gone: no service outlives what it serves, and none is cut
# off from what it still has to tell.
DRAIN_ORDER = ("gateway", "scheduler", "worker", "registry", "usage", "nats")
_ROOT = Path(tokenloom.__file__).parents[1]
_NOT_INHERITED = (
    "TOKENLOOM_NATS_URL",
    "TOKENLOOM_NATS_CA",
    "TOKENLOOM_DATABASE_URL",
    "TOKENLOOM_API_KEY",
    "TOKENLOOM_DEV_API_KEY",
    "TOKENLOOM_TLS_CA",
    "TOKENLOOM_TLS_CERT",
    "TOKENLOOM_TLS_KEY",
    "TOKENLOOM_PUBLIC_TLS_CERT",
    "TOKENLOOM_PUBLIC_TLS_KEY",
)


@dataclass
class Layout:
    """Plans one platform. Sockets lie in `sockets`, whose path must stay short (108 bytes are the limit)."""

    options: Options
    secrets: Secrets
    sockets: Path
    trust: Trust = field(default_factory=Trust)
    ports: Ports = field(default_factory=Ports)
    endpoints: list[Endpoint] = field(default_factory=list)

    def specs(self, nats_port: int) -> list[Spec]:
        """Every service's process, gateways last: they are what a caller waits for."""
        workers = enumerate(self.options.worker_models, 1)
        return [
            self._registry(nats_port),
            *(self._worker(f"worker-{number}", model, nats_port) for number, model in workers),
            self._scheduler(nats_port),
            self._usage(nats_port),
            *(self._gateway(number, nats_port) for number in range(1, self.options.gateways + 1)),
        ]

    def socket(self, name: str) -> str:
        """A service's target on this host."""
        return f"unix:{self.sockets / name}.sock"

    def _registry(self, nats_port: int) -> Spec:
        settings = {
            "REGISTRY_LISTEN": self.socket("registry"),
            "MODELS_DIR": str(self.options.models.resolve()),
            "SERVE_MODELS": ",".join(self.options.served),
        }
        return self._spec("registry", "registry", self.socket("registry"), settings, nats_port)

    def _worker(self, name: str, model: str, nats_port: int) -> Spec:
        settings = {
            "WORKER_ID": name,
            "WORKER_MODEL": model,
            "WORKER_LISTEN": self.socket(name),
            "REGISTRY_TARGET": self.socket("registry"),
        }
        return self._spec(name, "worker", self.socket(name), settings, nats_port)

    def _scheduler(self, nats_port: int) -> Spec:
        target = self.socket("scheduler")
        return self._spec("scheduler", "scheduler", target, {"SCHEDULER_LISTEN": target}, nats_port)

    def _usage(self, nats_port: int) -> Spec:
        settings = {"USAGE_LISTEN": self.socket("usage"), "DEV_API_KEY": self.secrets.api_key}
        if self.options.database_url:
            settings["DATABASE_URL"] = self.options.database_url
        return self._spec("usage", "usage", self.socket("usage"), settings, nats_port)

    def _gateway(self, number: int, nats_port: int) -> Spec:
        name = f"gateway-{number}"
        first = number == 1
        http = f"{HOST}:{self.ports.pick(self.options.http_port if first else 0)}"
        grpc = f"{HOST}:{self.ports.pick(self.options.grpc_port if first else 0)}"
        self.endpoints.append(Endpoint(f"{self.trust.http}://{http}", grpc))
        settings = {
            "GATEWAY_ID": name,
            "GRPC_LISTEN": grpc,
            "HTTP_LISTEN": http,
            "SCHEDULER_TARGET": self.socket("scheduler"),
            "USAGE_TARGET": self.socket("usage"),
        }
        return self._spec(name, "gateway", grpc, settings, nats_port)

    def _nats(self, service: str, port: int) -> dict[str, str]:
        if self.options.nats_url is None:
            return {"NATS_URL": nats.url(service, port, self.secrets.nats, self.trust.nats)}
        ca = os.environ.get("TOKENLOOM_NATS_CA")
        return {"NATS_URL": self.options.nats_url, **({"NATS_CA": ca} if ca else {})}

    def _spec(
        self, name: str, service: str, target: str, settings: Mapping[str, str], nats_port: int
    ) -> Spec:
        metrics = f"{HOST}:{self.ports.pick()}"
        common = {
            **self._nats(service, nats_port),
            "STATE_DIR": str((self.options.data_dir / "state" / name).resolve()),
            "METRICS_LISTEN": metrics,
            **self.trust.settings(service),
        }
        own = {f"TOKENLOOM_{key}": value for key, value in {**common, **settings}.items()}
        return Spec(
            name,
            service,
            (sys.executable, "-m", f"services.{service}"),
            GrpcProbe(target, partial(self.trust.channel, service=service)),
            {**environment(), **own},
            target=target,
            metrics_url=f"http://{metrics}/metrics",
            must_serve=service == "worker",
        )


def environment() -> dict[str, str]:
    """What every process inherits: the operator's settings, without secrets of other services."""
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
    return {"GRPC_VERBOSITY": "ERROR", "OMP_WAIT_POLICY": "PASSIVE", **inherited, "PYTHONPATH": path}
