"""`make bench-slow-readers`: what four clients that never read cost eight that do.

In turn the four read all they are sent, and nothing at all: what differs between the two is what a stalled
reader costs the others, since the engine's work is the same. They ask for two choices with 20 logprobs each,
two over HTTP and two over gRPC, with the smallest buffers a client can ask for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import grpc

from bench.figures import spread
from bench.results import write
from bench.stand import MODEL, Stand, running
from kit import lifecycle
from tokenloom.api.inference.v1 import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

READERS, OUTPUT = 8, 64
_HEAVY = {"maxOutputTokens": 1000, "n": 2, "logprobs": 20, "ignoreEos": True}
_SMALL_BYTES = 4096
_WINDOWS = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _SMALL_BYTES),
    ("grpc.max_receive_message_length", 64 << 20),
)


async def over_http(stand: Stand, *, reads: bool) -> None:
    """Ask for much, and read it or not, until cancelled."""
    at = urlsplit(stand.http_url)
    body = json.dumps({"model": MODEL, "prompt": "The sea", **_HEAVY})
    head = {
        "Host": at.netloc,
        "Authorization": f"Bearer {stand.api_key}",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BYTES)
        client.setblocking(False)
        await loop.sock_connect(client, (at.hostname, at.port))
        await loop.sock_sendall(client, f"POST /v1/generations HTTP/1.1\r\n{lines}\r\n{body}".encode())
        while reads and await loop.sock_recv(client, 1 << 16):
            pass
        await asyncio.Event().wait()


async def over_grpc(stand: Stand, *, reads: bool) -> None:
    """The same through the other face."""
    async with grpc.aio.insecure_channel(stand.grpc_target, options=_WINDOWS) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(
            model=MODEL, prompt="The sea", max_output_tokens=1000, n=2, logprobs=20, ignore_eos=True
        )
        call = stub.Generate(request, metadata=(("authorization", f"Bearer {stand.api_key}"),))
        await call.read()
        while reads and await call.read() is not grpc.aio.EOF:
            pass
        await asyncio.Event().wait()


async def gaps_of(session: aiohttp.ClientSession, stand: Stand, number: int) -> list[float]:
    """Seconds between the events of one stream that is read at once."""
    body = {"model": MODEL, "prompt": f"{number} ships", "maxOutputTokens": OUTPUT, "ignoreEos": True}
    headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {stand.api_key}"}
    async with session.post(f"{stand.http_url}/v1/generations", json=body, headers=headers) as response:
        response.raise_for_status()
        lines = response.content
        arrivals = [time.monotonic() async for line in lines if line.startswith(b"event: token")]
    return [later - earlier for earlier, later in itertools.pairwise(arrivals)]


async def measure(stand: Stand, *, reads: bool) -> list[float]:
    """Gaps of all streams while the four are there."""
    async with background(over(stand, reads=reads) for over in (over_http, over_grpc) for _ in range(2)):
        while stand.metric("gateway", "tokenloom_gateway_streams_open") < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            found = await asyncio.gather(*(gaps_of(session, stand, number) for number in range(READERS)))
    while await stand.owned_pages():  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    return [gap for one in found for gap in one]


@contextlib.asynccontextmanager
async def background(work: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run these until the end of the block."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        await lifecycle.end(*tasks)


async def bench(dtype: str, rounds: int) -> dict[str, Any]:
    """One run; its figures."""
    found: dict[str, list[float]] = {"reading": [], "stalled": []}
    cpu_s = dict.fromkeys(found, 0.0)
    async with running(dtype) as stand:
        await measure(stand, reads=True)  # what is loaded on first use is loaded
        before = stand.resident_bytes("gateway")
        for number in range(2 * rounds):
            kind = "stalled" if number % 4 in {1, 2} else "reading"
            used = stand.cpu_s("gateway")
            gaps = await measure(stand, reads=kind == "reading")
            cpu_s[kind] += stand.cpu_s("gateway") - used
            found[kind] += gaps
            print(f"round {number // 2 + 1} {kind:8}", spread(gaps), flush=True)
        grown = stand.resident_bytes("gateway") - before
    figures = {name: {"gaps": len(times)} | spread(times) for name, times in found.items()}
    ratios = {
        name: figures["stalled"][name] / figures["reading"][name] for name in ("mean_ms", "p50_ms", "p99_ms")
    }
    return {
        "dtype": dtype,
        "readers": READERS,
        "itl": figures,
        "stalled_over_reading": {name: round(value, 3) for name, value in ratios.items()},
        "gateway_cpu_s": {kind: round(seconds, 2) for kind, seconds in cpu_s.items()},
        "gateway_grown_mib": round(grown / (1 << 20), 1),
    }


def main() -> None:
    """Measure and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    asked = parser.parse_args()
    figures = asyncio.run(bench(asked.dtype, asked.rounds))
    print(json.dumps(figures, indent=1))
    print(f"kept in {write('slow-readers', figures)}")


if __name__ == "__main__":
    main()
