"""InferenceService: protos to the use cases and back."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc

from kit.errors import Code, ServiceError
from kit.grpc import to_status
from services.gateway.adapters import inference_codec as codec
from services.gateway.app.generations import Arrival
from services.gateway.core.ids import parse_id
from services.gateway.core.validation import parse_generation, parse_prompt
from tokenloom.api.inference.v1 import inference_pb2, inference_pb2_grpc

# Status and trailers queue behind what the client has not read.
_HANG_UP_S = 1.0

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from services.gateway.adapters.keys import KeyRing
    from services.gateway.app.generations import Generations
    from services.gateway.app.ports import Tenant
    from services.gateway.app.reading import Reading

    Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The gRPC face."""

    def __init__(
        self, generations: Generations, keys: KeyRing, refused: Callable[[ServiceError], None]
    ) -> None:
        self._generations = generations
        self._keys = keys
        self._refused = refused
        self._hang_ups: set[asyncio.Task[None]] = set()

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Run one generation."""
        reading = await self._start(request, context)
        # The handler may be parked in a write when its client goes; the call's own end is certain.
        context.add_done_callback(lambda _: reading.leave())  # type: ignore[arg-type]
        reading.on_turn_away(lambda task: self._hang_up(task, context))
        try:
            yield codec.accepted(reading.accepted)
            while pieces := await reading.take():
                for piece in pieces:
                    yield codec.tokens(piece, reading.accepted)
            closed = await reading.ended()
            if error := reading.error:
                raise error
            yield codec.done_response(closed)
        finally:
            reading.leave()

    async def Cancel(  # noqa: N802
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        """End a generation."""
        tenant = self._tenant(context)
        state = await self._generations.cancel(tenant, parse_id(request.request_id))
        return inference_pb2.CancelResponse(state=codec.state(state))

    async def Get(  # noqa: N802
        self, request: inference_pb2.GetRequest, context: Context
    ) -> inference_pb2.GetResponse:
        """State and output so far."""
        tenant = self._tenant(context)
        found = await self._generations.get(tenant, parse_id(request.request_id))
        return codec.snapshot(request.request_id, found)

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """Models in name order."""
        self._tenant(context)
        return inference_pb2.ListModelsResponse(models=map(codec.model, self._generations.models()))

    async def CountTokens(  # noqa: N802
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        """The prompt's ids as Generate would count them."""
        self._tenant(context)
        ids, version = await self._generations.count_tokens(parse_prompt(codec.plain(request), "snake"))
        return inference_pb2.CountTokensResponse(count=len(ids), token_ids=ids, tokenizer_version=version)

    async def _start(self, request: inference_pb2.GenerateRequest, context: Context) -> Reading:
        arrival = _arrival(context)
        try:
            tenant = self._tenant(context)
            spec = parse_generation(codec.plain(request), "snake")
            return await self._generations.start(tenant, spec, arrival)
        except ServiceError as error:
            self._refused(error)
            raise

    def _tenant(self, context: Context) -> Tenant:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return self._keys.authenticate(value if isinstance(value, str) else None)
        return self._keys.authenticate(None)

    def _hang_up(self, handler: asyncio.Task[object], context: Context) -> None:
        # A handler that is cancelled in a write never sends a status, and its client would wait for ever.
        async def end() -> None:
            error = ServiceError(Code.CANCELLED, "CANCELLED", "the stream was not read in time")
            try:
                async with asyncio.timeout(_HANG_UP_S):
                    await context.abort_with_status(to_status(error))
            except (grpc.aio.AbortError, grpc.aio.UsageError, TimeoutError):
                handler.cancel()

        task = asyncio.create_task(end())
        self._hang_ups.add(task)
        task.add_done_callback(self._hang_ups.discard)


def _arrival(context: Context) -> Arrival:
    now = time.monotonic()
    left = context.time_remaining()
    return Arrival(now, None if left is None else now + left)
