"""Tokenizers by model version, and the bounded pool of threads that all their work runs in."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

import kit.log
from kit import artifacts
from kit.errors import Code, ServiceError
from services.gateway.core.tokenizing import ModelTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.gateway.app.ports import Route

P = ParamSpec("P")
T = TypeVar("T")
_log = kit.log.get("tokenizers")


class TokenizerPool:
    """Loads each version once, verified; refuses work beyond its queue instead of piling it up."""

    def __init__(self, *, threads: int, queue: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "tokenizer")
        self._limit = threads + queue
        self._pending = 0
        self._loads: dict[str, asyncio.Task[ModelTokenizer]] = {}

    async def load(self, route: Route) -> ModelTokenizer:
        """The tokenizer of a route's version; many callers share one load."""
        version = route.model_version
        if version not in self._loads:
            self._loads[version] = asyncio.create_task(self.run(_load, route.artifact_uri))
        try:
            return await asyncio.shield(self._loads[version])
        except (artifacts.ArtifactError, OSError) as error:
            self._loads.pop(version, None)
            _log.error("tokenizer not loaded", model_version=version, error=str(error))
            raise ServiceError(
                Code.UNAVAILABLE, "NO_CAPACITY", "the model's tokenizer cannot be loaded", retry_after_ms=5000
            ) from error
        except ServiceError:
            self._loads.pop(version, None)
            raise

    def loaded(self, model_version: str) -> ModelTokenizer | None:
        """The tokenizer of a version that was loaded before, whether it has a route or not."""
        load = self._loads.get(model_version)
        finished = load is not None and load.done() and not load.cancelled() and load.exception() is None
        return load.result() if load and finished else None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run CPU work off the loop; raises QUEUE_FULL when too much of it waits."""
        if self._pending >= self._limit:
            raise ServiceError(
                Code.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                "too many prompts are being tokenized",
                retry_after_ms=250,
            )
        self._pending += 1
        future = asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def close(self) -> None:
        """Let running work end and release the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: asyncio.Future[T]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # the caller may be gone


def _load(artifact_uri: str) -> ModelTokenizer:
    return ModelTokenizer.load(Path(unquote(urlsplit(artifact_uri).path)))
