"""The one load generator: streams completions from any OpenAI-compatible server and times what arrives."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peers.servers import Endpoint

# Ids below are special in the models that are compared.
_FIRST_ID, _LAST_ID = 1_000, 40_000
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to complete, and by how many tokens."""

    ids: tuple[int, ...]
    output: int


@dataclass(slots=True)
class Stream:
    """One completion; times are seconds on one clock."""

    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    output_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    failure: str = ""

    @property
    def ttft(self) -> float:
        """Sent to first text."""
        return self.arrivals[0] - self.sent

    @property
    def tpot(self) -> float:
        """Mean seconds a token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(1, self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between arrivals."""
        return self.gaps_within(self.sent, math.inf)

    def gaps_within(self, start: float, end: float) -> list[float]:
        """Seconds between arrivals, of the gaps that were open at any time from `start` to `end`."""
        return [
            later - earlier for earlier, later in pairwise(self.arrivals) if later > start and earlier < end
        ]


def random_prompts(count: int, length: int, output: int, seed: int, prefix: int = 0) -> list[Prompt]:
    """Prompts of random ids; the first `prefix` ids are the same in all."""
    source = random.Random(seed)
    shared = tuple(source.randrange(_FIRST_ID, _LAST_ID) for _ in range(prefix))
    return [
        Prompt(shared + tuple(source.randrange(_FIRST_ID, _LAST_ID) for _ in range(length - prefix)), output)
        for _ in range(count)
    ]


class LoadClient:
    """Callers of one server; use it as an async context."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __aenter__(self) -> LoadClient:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._endpoint.api_key}"},
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            # Servers close kept connections when it suits them, which would count as a failure of theirs.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def run(self, prompts: Sequence[Prompt], streams: int) -> tuple[list[Stream], float]:
        """All prompts, at most `streams` at once; the streams and the seconds it took."""
        waiting = list(reversed(prompts))
        found: list[Stream] = []

        async def caller() -> None:
            while waiting:
                found.append(await self.stream(waiting.pop()))

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(streams)))
        return found, time.perf_counter() - started

    async def stream(self, prompt: Prompt, result: Stream | None = None) -> Stream:
        """One completion to its end; `result` is filled as it comes."""
        body = {
            "model": self._endpoint.model, "prompt": list(prompt.ids), "max_tokens": prompt.output,
            "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        result = result or Stream()
        result.sent = time.perf_counter()
        try:
            async with self._session.post(f"{self._endpoint.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    raise aiohttp.ClientError(f"{response.status}: {(await response.text())[:200]}")
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        _take(result, json.loads(line[6:]), len(prompt.ids))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            result.failure = str(error) or type(error).__name__
        if not result.failure and (not result.text.strip() or result.output_tokens != prompt.output):
            result.failure = f"{result.output_tokens} tokens of output instead of {prompt.output}, or no text"
        return result


def _take(result: Stream, chunk: dict[str, Any], prompt_tokens: int) -> None:
    if any(choice.get("text") for choice in chunk.get("choices", ())):
        result.arrivals.append(time.perf_counter())
        result.text += chunk["choices"][0]["text"]
    if usage := chunk.get("usage"):
        if usage["prompt_tokens"] != prompt_tokens:
            raise ValueError(f"{usage['prompt_tokens']} prompt tokens instead of {prompt_tokens}")
        result.output_tokens = usage["completion_tokens"]
        result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def failures(streams: Sequence[Stream]) -> list[str]:
    """Why streams failed, each reason once."""
    return sorted({stream.failure for stream in streams if stream.failure})


def summary(streams: Sequence[Stream], seconds: float) -> dict[str, float]:
    """What a run came to; milliseconds and tokens a second."""
    good = [stream for stream in streams if not stream.failure]
    gaps = [gap for stream in good for gap in stream.gaps]
    return {
        "output_tok_s": sum(stream.output_tokens for stream in good) / seconds,
        "ttft_p50_ms": 1e3 * percentile([stream.ttft for stream in good], 0.5),
        "ttft_p99_ms": 1e3 * percentile([stream.ttft for stream in good], 0.99),
        "tpot_p50_ms": 1e3 * percentile([stream.tpot for stream in good], 0.5),
        "itl_p50_ms": 1e3 * percentile(gaps, 0.5),
        "itl_p99_ms": 1e3 * percentile(gaps, 0.99),
        "longest_gap_ms": 1e3 * max(gaps, default=0.0),
        "cached_tokens": sum(stream.cached_tokens for stream in good),
        "completed": len(good),
        "failed": len(streams) - len(good),
    }


def median(summaries: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median over rounds of every figure that all of them have."""
    names = [name for name in summaries[0] if all(name in one for one in summaries)]
    return {name: statistics.median([one[name] for one in summaries]) for name in names}
