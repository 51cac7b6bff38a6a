"""What is asked of every server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bench.peers.client import LoadClient, Stream, failures, random_prompts, summary

if TYPE_CHECKING:
    from bench.peers.client import Prompt
    from bench.peers.servers import Endpoint

# A stream runs once it has had so many tokens.
_RUNNING = 20
_FEW = 8


class Found(NamedTuple):
    """The figures of one workload on one server, and why streams failed."""

    figures: dict[str, float]
    failures: list[str]


@dataclass(frozen=True, slots=True)
class Throughput:
    """`count` requests of the same shape, `streams` at once; `prefix` tokens are the same in all."""

    name: str
    prompt: int
    output: int
    streams: int
    count: int
    prefix: int = 0

    async def run(self, endpoint: Endpoint, seed: int) -> Found:
        """Warm the server up with other prompts, then measure."""
        async with LoadClient(endpoint) as client:
            await client.run(self._prompts(self.streams, _FEW, seed + 1_000_000), self.streams)
            streams, seconds = await client.run(self._prompts(self.count, self.output, seed), self.streams)
        if not self.prefix:
            _refuse_cached(streams)
        return Found(summary(streams, seconds), failures(streams))

    def _prompts(self, count: int, output: int, seed: int) -> list[Prompt]:
        return random_prompts(count, self.prompt, output, seed, self.prefix)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A long prompt arrives among running streams: the figures are theirs, `long_ttft_ms` is its own.

    `longest_gap_ms` is of the `gap_streams` that had text with every token, or of all where none had, from
    its arrival to its first token; `gap_of_allowed` is that over the larger of 2.5 times their median gap
    and 75 ms.
    """

    name: str
    streams: int
    long_prompt: int
    output: int = 600

    async def run(self, endpoint: Endpoint, seed: int) -> Found:
        """Measure once."""
        async with LoadClient(endpoint) as client:
            await client.run(random_prompts(self.streams, 64, _FEW, seed + 1_000_000), self.streams)
            streams = [Stream() for _ in range(self.streams)]
            prompts = random_prompts(self.streams, 64, self.output, seed)
            running = asyncio.gather(*map(client.stream, prompts, streams))
            while not running.done() and not all(map(_runs, streams)):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            (long,) = random_prompts(1, self.long_prompt, _FEW, seed + 1)
            late = await client.stream(long)
            await running
        _refuse_cached([*streams, late])
        if not failures([*streams, late]):
            _refuse_ended(streams, late)
        return Found(of_arrival(streams, late), failures([*streams, late]))


def _runs(stream: Stream) -> bool:
    return len(stream.arrivals) >= _RUNNING


def of_arrival(streams: list[Stream], late: Stream) -> dict[str, float]:
    """The figures of running streams among which a long prompt came late."""
    last = max((stream.arrivals[-1] for stream in streams if stream.arrivals), default=late.sent)
    found = summary(streams, last - streams[0].sent)
    if late.failure:
        return found | {"failed": found["failed"] + 1}
    # A special token has no text, and a character of several tokens only after the last: that is no gap of
    # the server's. What holds all streams up still shows in the others, or in all where it joined events.
    whole = [stream for stream in streams if len(stream.arrivals) == stream.output_tokens] or streams
    gaps = [gap for stream in whole for gap in stream.gaps_within(late.sent, late.arrivals[0])]
    longest_ms = 1e3 * max(gaps, default=0.0)
    return found | {
        "longest_gap_ms": longest_ms,
        "gap_streams": len(whole),
        "gap_of_allowed": longest_ms / max(2.5 * found["itl_p50_ms"], 75.0),
        "long_ttft_ms": 1e3 * late.ttft,
    }


def _refuse_ended(streams: list[Stream], late: Stream) -> None:
    for stream in streams:
        if stream.arrivals[-1] < late.arrivals[0]:
            stream.failure = "it ended before the long prompt was answered"


def _refuse_cached(streams: list[Stream]) -> None:
    """Random prompts have nothing in common: what a cache gives would be another measurement."""
    for stream in streams:
        if stream.cached_tokens:
            stream.failure = f"{stream.cached_tokens} tokens of a random prompt were cached"


Workload = Throughput | Arrival
WORKLOADS: tuple[Workload, ...] = (
    Throughput("128/128, 1", 128, 128, 1, 4),
    Throughput("128/128, 8", 128, 128, 8, 24),
    Throughput("128/128, 32", 128, 128, 32, 64),
    Throughput("512/64, 8", 512, 64, 8, 16),
    Throughput("shared 480, 8", 500, 64, 8, 24, prefix=480),
    Arrival("1480 among 8", 8, 1480),
)
