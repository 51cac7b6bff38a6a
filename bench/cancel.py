"""`make bench-cancel`: from a client's going to its pages free, while 32 streams run.

Clients go in mid-stream, half by closing their connection and half by DELETE, one after the other; another
takes each one's place. The end is when the scheduler has freed the pages, as an onlooker on its lane stream
hears it, so figures hold the onlooker's own delay too. The bound is one step, by the scheduler's metrics of
the same run, and 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

import aiohttp
import grpc

from bench.figures import spread
from bench.results import write
from bench.stand import MODEL, Stand, running
from kit import lifecycle
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

if TYPE_CHECKING:
    from types import TracebackType

STREAMS, LEEWAY_S = 32, 0.05
_BEAT_S = 2.0
_T = TypeVar("_T")
_FIRST_ID, _LAST_ID = 1_000, 40_000


class Onlooker:
    """Follows requests on a lane stream of its own, and notes when each has ended."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target)
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)
        self._call = stub.Lane()
        self._heard: dict[int, asyncio.Future[float]] = {}
        self._follows: dict[int, asyncio.Future[None]] = {}
        self._writing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._say(hello=scheduler_pb2.Hello(gateway_id="onlooker"))
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._beat())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await lifecycle.end(*self._tasks)
        await self._channel.close()

    async def follow(self, request_id: int) -> asyncio.Future[float]:
        """Return once it is followed; the future gives the time of its end."""
        loop = asyncio.get_running_loop()
        self._heard[request_id], self._follows[request_id] = loop.create_future(), loop.create_future()
        await self._say(attach=scheduler_pb2.Attach(request_id=request_id, tenant_id="dev"))
        await self._follows[request_id]
        return self._heard[request_id]

    async def _say(self, **message: Any) -> None:  # noqa: ANN401 - one of the stream's messages
        async with self._writing:
            await self._call.write(scheduler_pb2.LaneRequest(**message))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            await self._say(heartbeat=scheduler_pb2.Heartbeat())

    async def _listen(self) -> None:
        while (message := await self._call.read()) is not grpc.aio.EOF:
            now = time.monotonic()
            if message.HasField("attached"):
                # Once more with its end, where a step was still being told to the owner when it closed.
                attached = message.attached
                _settle(self._follows[attached.request_id], None)
                if attached.record.HasField("end"):
                    _settle(self._heard[attached.request_id], now)
            for end in message.step.request_end:
                _settle(self._heard[end.request_id], now)


def _settle(future: asyncio.Future[_T], value: _T) -> None:
    if not future.done():
        future.set_result(value)


class Caller:
    """One stream, read until it is to go."""

    def __init__(self, session: aiohttp.ClientSession, stand: Stand, rng: random.Random) -> None:
        self._session, self._stand = session, stand
        self._prompt = [rng.randrange(_FIRST_ID, _LAST_ID) for _ in range(rng.randint(8, 128))]
        self.streaming = asyncio.Event()
        self.request_id = 0
        self._response: aiohttp.ClientResponse | None = None
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        body = {"model": MODEL, "promptTokenIds": self._prompt, "maxOutputTokens": 1500, "ignoreEos": True}
        url = f"{self._stand.http_url}/v1/generations"
        async with self._session.post(url, json=body, headers={"Accept": "text/event-stream"}) as response:
            response.raise_for_status()
            self._response = response
            self.request_id = int(response.headers["x-request-id"].removeprefix("gen-"), 16)
            async for line in response.content:
                if line.startswith(b"event: token"):
                    self.streaming.set()

    async def runs(self) -> None:
        """Return once tokens come; raises if its request ends instead."""
        streaming = asyncio.create_task(self.streaming.wait())
        await asyncio.wait({streaming, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        streaming.cancel()
        if self._reading.done():
            await self._reading
            raise RuntimeError("a stream ended before its client was to go")

    async def go(self, *, by_delete: bool) -> float:
        """Leave; the time at which the client did."""
        assert self._response is not None
        now = time.monotonic()
        if by_delete:
            url = f"{self._stand.http_url}/v1/generations/gen-{self.request_id:016x}"
            async with self._session.delete(url) as response:
                response.raise_for_status()
        else:
            self._response.close()
        return now

    async def end(self) -> None:
        """Wait for what is left of it."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
            await self._reading


async def measure(stand: Stand, samples: int) -> dict[str, list[float]]:
    """Seconds from going to free, by the way of going."""
    rng = random.Random(11)
    found: dict[str, list[float]] = {"close": [], "delete": []}
    headers = {"Authorization": f"Bearer {stand.api_key}"}
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session,
        Onlooker(stand.service("scheduler")["target"]) as onlooker,
    ):
        callers = [Caller(session, stand, rng) for _ in range(STREAMS)]
        for number in range(samples):
            await asyncio.gather(*(caller.runs() for caller in callers))
            caller = callers.pop(rng.randrange(STREAMS))
            freed = await onlooker.follow(caller.request_id)
            await asyncio.sleep(rng.uniform(0.0, 0.1))  # at any moment of a step
            gone = await caller.go(by_delete=number % 2 == 1)
            found["delete" if number % 2 else "close"].append(await freed - gone)
            await caller.end()
            callers.append(Caller(session, stand, rng))
        for caller in callers:
            await caller.end()
    return found


async def bench(dtype: str, samples: int) -> dict[str, Any]:
    """One run; its figures."""
    async with running(dtype) as stand:
        metric = "tokenloom_scheduler_step_seconds_sum", "tokenloom_scheduler_steps_total"
        before = [stand.metric("scheduler", name) for name in metric]
        found = await measure(stand, samples)
        seconds, steps = (
            stand.metric("scheduler", name) - at for name, at in zip(metric, before, strict=True)
        )
        until = time.monotonic() + 10
        while left := await stand.owned_pages():
            if time.monotonic() > until:
                raise RuntimeError(f"{left} pages are owned by nobody's streams")
            await asyncio.sleep(0.05)
    bound = seconds / steps + LEEWAY_S
    figures = {way: {"samples": len(times)} | spread(times) for way, times in found.items()}
    worst = max(one["p99_ms"] for one in figures.values())
    return {
        "dtype": dtype,
        "streams": STREAMS,
        "step_ms": round(seconds / steps * 1e3, 1),
        "bound_ms": round(bound * 1e3, 1),
        "held": worst <= bound * 1e3,
        "cancel_to_free": figures,
    }


def main() -> int:
    """Measure, keep the figures, and say by the exit code whether the bound held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--dtype", default="bfloat16")
    asked = parser.parse_args()
    figures = asyncio.run(bench(asked.dtype, asked.samples))
    print(json.dumps(figures, indent=1))
    print(f"kept in {write('cancel', figures)}")
    return 0 if figures["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
