"""How the supervisor sees whether a process serves, and the rule that calls one hung."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from tokenloom.up.options import Policy


class Health(enum.Enum):
    """One probe's finding; SILENT means that nothing answered in time."""

    SERVING = "serving"
    NOT_SERVING = "not serving"
    SILENT = "silent"


class Probe(Protocol):
    """Asks a process once."""

    async def __call__(self, answer_s: float) -> Health:
        """Wait at most `answer_s` seconds for an answer."""


class GrpcProbe:
    """Asks grpc.health.v1 about the whole server; `connect` makes a channel to a target."""

    def __init__(self, target: str, connect: Callable[[str], grpc.aio.Channel] | None = None) -> None:
        self._target = target
        self._connect = connect or _in_the_clear

    async def __call__(self, answer_s: float) -> Health:
        """One Check on a connection of its own, so that a restarted process is seen at once."""
        async with self._connect(self._target) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=answer_s)
            except grpc.aio.AioRpcError:
                return Health.SILENT
        serving = response.status == health_pb2.HealthCheckResponse.SERVING
        return Health.SERVING if serving else Health.NOT_SERVING


def _in_the_clear(target: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),))


class NatsProbe:
    """Connects, by TLS where it has a context, and reads the server's greeting.

    With the port of its monitoring it asks there too whether JetStream can store: after a write that failed
    the server greets callers as before, and stores nothing until it is restarted.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, monitor: int | None = None) -> None:
        self._port = port
        self._tls = tls
        self._monitor = monitor

    async def __call__(self, answer_s: float) -> Health:
        """One greeting, and one answer to whether it is well."""
        try:
            async with asyncio.timeout(answer_s):
                serving = (await self._line(self._port, b"", self._tls)).startswith(b"INFO")
                if serving and self._monitor is not None:
                    status = await self._line(self._monitor, b"GET /healthz HTTP/1.0\r\n\r\n")
                    serving = status.split()[1:2] == [b"200"]
        except (OSError, TimeoutError):
            return Health.SILENT
        return Health.SERVING if serving else Health.NOT_SERVING

    @staticmethod
    async def _line(port: int, question: bytes, tls: ssl.SSLContext | None = None) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            writer.write(question)
            return await reader.readline()
        finally:
            writer.close()


class HangRule:
    """Decides from probe after probe when a process must be restarted.

    One that has answered and falls silent hangs, and so does one that never answers. NOT_SERVING is alive,
    since it may wait for a peer; but with `must_serve` a process that served answers for itself alone.
    """

    def __init__(self, policy: Policy, now: float, *, must_serve: bool = False) -> None:
        self._policy = policy
        self._must_serve = must_serve
        self._answered = self._served = False
        self._last_answer = self._last_serving = now

    def observe(self, health: Health, now: float) -> str | None:
        """Take a finding; returns why the process counts as hung, or None."""
        if health is not Health.SILENT:
            self._answered = True
            self._last_answer = now
        if health is Health.SERVING:
            self._served = True
            self._last_serving = now
        limit = self._policy.hang_s if self._answered else self._policy.start_s
        if now - self._last_answer >= limit:
            return f"did not answer for {limit:.0f} s"
        limit = self._policy.unserving_s
        if self._must_serve and self._served and now - self._last_serving >= limit:
            return f"served and then did not for {limit:.0f} s"
        return None
