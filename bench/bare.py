"""A token's way with nothing of the platform on it: the least that this machine takes for it.

Three processes stand for worker, scheduler and gateway. The first tells the time once a step, the second
tells it again, both over grpc.aio; the third tells it to every client, over grpc.aio or a socket each. What
the platform takes beyond this is its own.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import tempfile
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import grpc
import uvloop

from bench.processes import module

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    Say = Callable[[], AsyncGenerator[bytes, None]]

# What the platform sends of a step with a token for each client, and of one token.
STEP_BYTES, EVENT_BYTES = 600, 150
_NAME, _METHOD = "tokenloom.bench.Bare", "Follow"
_TIME = struct.Struct("d")


async def ages_s(face: str, clients: int, steps: int, step_s: float) -> list[float]:
    """How long each message was under way to each client over `gRPC` or `HTTP`, in seconds, step by step."""
    ages: list[float] = []
    follow = _grpc_client if face == "gRPC" else _socket_client
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-", dir="/tmp") as directory:
        first, second = (f"unix:{directory}/{name}.sock" for name in ("first", "second"))
        with (
            module("bench.bare", ["source", first, f"{steps}", f"{step_s}"]),
            module("bench.bare", ["relay", second, first]),
            module("bench.bare", [face, second, f"{clients}"]) as third,
        ):
            assert third.stdout is not None
            port = int(await asyncio.to_thread(third.stdout.readline))
            await asyncio.gather(*(follow(port, ages) for _ in range(clients)))
    return ages


async def _grpc_client(port: int, ages: list[float]) -> None:
    async with aclosing(_follow(f"127.0.0.1:{port}")) as told:
        async for message in told:
            ages.append(_age_s(message))  # noqa: PERF401 - as it comes


async def _socket_client(port: int, ages: list[float]) -> None:
    heard = _Heard(ages)
    await asyncio.get_running_loop().create_connection(lambda: heard, "127.0.0.1", port)
    await heard.ended


class _Heard(asyncio.Protocol):
    def __init__(self, ages: list[float]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._ages, self._rest = ages, b""

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= EVENT_BYTES:
            self._ages.append(_age_s(self._rest))
            self._rest = self._rest[EVENT_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


def _age_s(message: bytes) -> float:
    return time.monotonic() - float(_TIME.unpack_from(message)[0])


async def _follow(target: str) -> AsyncGenerator[bytes, None]:
    async with grpc.aio.insecure_channel(target) as channel:
        method: Any = channel.unary_stream(f"/{_NAME}/{_METHOD}")
        call = method(b"", wait_for_ready=True)
        while (message := await call.read()) is not grpc.aio.EOF:
            yield message


async def _serve(target: str, say: Say) -> None:
    """Print the port, and serve until the process is ended."""

    async def follow(request: bytes, context: object) -> AsyncGenerator[bytes, None]:
        async for message in say():
            yield message

    server = grpc.aio.server()
    method: Any = grpc.unary_stream_rpc_method_handler(follow)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_NAME, {_METHOD: method}),))
    port = server.add_insecure_port(target)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def _times(steps: int, step_s: float) -> AsyncGenerator[bytes, None]:
    for _ in range(steps):
        await asyncio.to_thread(time.sleep, step_s)
        yield _TIME.pack(time.monotonic()) + bytes(STEP_BYTES - _TIME.size)


async def _fan_out_grpc(upstream: str, clients: int) -> None:
    queues: list[asyncio.Queue[bytes]] = []
    complete = asyncio.Event()

    async def say() -> AsyncGenerator[bytes, None]:
        queues.append(asyncio.Queue())
        queue = queues[-1]
        if len(queues) == clients:
            complete.set()
        while message := await queue.get():
            yield message

    async def tell() -> None:
        await complete.wait()
        async for message in _follow(upstream):
            for queue in queues:
                queue.put_nowait(message[:EVENT_BYTES])
        for queue in queues:
            queue.put_nowait(b"")

    await asyncio.gather(_serve("127.0.0.1:0", say), tell())


async def _fan_out_sockets(upstream: str, clients: int) -> None:
    transports: list[asyncio.WriteTransport] = []
    complete = asyncio.Event()

    class Client(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transports.append(cast("asyncio.WriteTransport", transport))
            if len(transports) == clients:
                complete.set()

    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1")
    print(server.sockets[0].getsockname()[1], flush=True)
    await complete.wait()
    async for message in _follow(upstream):
        for transport in transports:
            transport.write(message[:EVENT_BYTES])
    for transport in transports:
        transport.close()
    await server.serve_forever()


async def _main(role: str, target: str, *more: str) -> None:
    match role, more:
        case "source", (steps, step_s):
            await _serve(target, lambda: _times(int(steps), float(step_s)))
        case "relay", (upstream,):
            await _serve(target, lambda: _follow(upstream))
        case "gRPC", (clients,):
            await _fan_out_grpc(target, int(clients))
        case "HTTP", (clients,):
            await _fan_out_sockets(target, int(clients))


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
