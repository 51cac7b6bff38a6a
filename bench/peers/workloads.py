"""What is asked of every server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peers.client import LoadClient, random_prompts, summary

if TYPE_CHECKING:
    from bench.peers.client import Prompt
    from bench.peers.servers import Endpoint


@dataclass(frozen=True, slots=True)
class Throughput:
    """`count` requests of the same shape, `streams` at once; `prefix` tokens are the same in all."""

    name: str
    prompt: int
    output: int
    streams: int
    count: int
    prefix: int = 0

    async def run(self, endpoint: Endpoint, seed: int) -> dict[str, float]:
        """Warm the server up with other prompts, then measure."""
        async with LoadClient(endpoint) as client:
            await client.run(self._prompts(self.streams, 8, seed + 1_000_000), self.streams)
            streams, seconds = await client.run(self._prompts(self.count, self.output, seed), self.streams)
        return summary(streams, seconds)

    def _prompts(self, count: int, output: int, seed: int) -> list[Prompt]:
        return random_prompts(count, self.prompt, output, seed, self.prefix)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A long prompt arrives among running streams; the figures are theirs, `ttft_*` is the long one's."""

    name: str
    streams: int
    long_prompt: int
    after_s: float = 3.0

    async def run(self, endpoint: Endpoint, seed: int) -> dict[str, float]:
        """Measure once."""
        async with LoadClient(endpoint) as client:
            await client.run(random_prompts(self.streams, 64, 8, seed + 1_000_000), self.streams)
            running = asyncio.create_task(
                client.run(random_prompts(self.streams, 64, 400, seed), self.streams)
            )
            await asyncio.sleep(self.after_s)
            (long,) = random_prompts(1, self.long_prompt, 8, seed + 1)
            late = await client.stream(long)
            streams, seconds = await running
        found = summary(streams, seconds)
        return found | {"ttft_p50_ms": 1e3 * late.ttft, "ttft_p99_ms": 1e3 * late.ttft}


Workload = Throughput | Arrival
WORKLOADS: tuple[Workload, ...] = (
    Throughput("128/128, 1", 128, 128, 1, 6),
    Throughput("128/128, 8", 128, 128, 8, 32),
    Throughput("128/128, 32", 128, 128, 32, 96),
    Throughput("512/64, 8", 512, 64, 8, 24),
    Throughput("shared 480, 8", 500, 64, 8, 24, prefix=480),
    Arrival("1480 among 8", 8, 1480),
)
