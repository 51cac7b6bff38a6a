"""InferenceService: protos to the use cases and back."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from kit.errors import Code, ServiceError
from kit.grpc import to_status
from services.gateway.adapters import inference_codec as codec
from services.gateway.app.generations import Arrival
from services.gateway.core.ids import parse_key, parse_reference
from services.gateway.core.validation import check_start, parse_generation, parse_prompt
from tokenloom.api.inference.v1 import inference_pb2, inference_pb2_grpc

ResponseT = TypeVar("ResponseT", inference_pb2.GenerateResponse, inference_pb2.AttachResponse)
# Status and trailers queue behind what the client has not read.
_HANG_UP_S = 1.0

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine

    from services.gateway.adapters.keys import KeyRing
    from services.gateway.app.front import Front
    from services.gateway.app.ports import Tenant
    from services.gateway.app.reading import Reading

    Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The gRPC face."""

    def __init__(self, front: Front, keys: KeyRing, refused: Callable[[ServiceError], None]) -> None:
        self._front = front
        self._keys = keys
        self._refused = refused
        self._hang_ups: set[asyncio.Task[None]] = set()

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Run one generation, or follow the one that has the same key."""
        reading = await self._begin(self._start(request, context))
        async with aclosing(self._answer(reading, context, inference_pb2.GenerateResponse)) as responses:
            async for response in responses:
                yield response

    async def Attach(  # noqa: N802
        self, request: inference_pb2.AttachRequest, context: Context
    ) -> AsyncIterator[inference_pb2.AttachResponse]:
        """Follow a generation from a token on."""
        reading = await self._begin(self._attach(request, context))
        async with aclosing(self._answer(reading, context, inference_pb2.AttachResponse)) as responses:
            async for response in responses:
                yield response

    async def Cancel(  # noqa: N802
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        """End a generation."""
        tenant = self._tenant(context)
        _, state = await self._front.cancel(tenant, parse_reference(request.request_id))
        return inference_pb2.CancelResponse(state=codec.state(state))

    async def Get(  # noqa: N802
        self, request: inference_pb2.GetRequest, context: Context
    ) -> inference_pb2.GetResponse:
        """State and output so far."""
        tenant = self._tenant(context)
        return codec.snapshot(*await self._front.get(tenant, parse_reference(request.request_id)))

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """Models in name order."""
        self._tenant(context)
        return inference_pb2.ListModelsResponse(models=map(codec.model, self._front.models()))

    async def CountTokens(  # noqa: N802
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        """The prompt's ids as Generate would count them."""
        self._tenant(context)
        ids, version = await self._front.count_tokens(parse_prompt(codec.plain(request), "snake"))
        return inference_pb2.CountTokensResponse(count=len(ids), token_ids=ids, tokenizer_version=version)

    async def _begin(self, work: Coroutine[Any, Any, Reading]) -> Reading:
        try:
            return await work
        except ServiceError as error:
            self._refused(error)
            raise

    async def _start(self, request: inference_pb2.GenerateRequest, context: Context) -> Reading:
        arrival = _arrival(context)
        tenant = self._tenant(context)
        key = parse_key(request.idempotency_key, "idempotency_key") if request.idempotency_key else None
        spec = parse_generation(codec.plain(request), "snake")
        return await self._front.start(tenant, spec, arrival, key)

    async def _attach(self, request: inference_pb2.AttachRequest, context: Context) -> Reading:
        arrival = _arrival(context)
        tenant = self._tenant(context)
        start = check_start(tuple(request.from_index), "from_index")
        return await self._front.attach(
            tenant, parse_reference(request.request_id), start, arrival, "from_index"
        )

    async def _answer(
        self, reading: Reading, context: Context, response: Callable[[], ResponseT]
    ) -> AsyncGenerator[ResponseT, None]:
        # The handler may be parked in a write when its client goes; the call's own end is certain.
        context.add_done_callback(lambda _: reading.leave())  # type: ignore[arg-type]
        reading.on_turn_away(lambda task: self._hang_up(task, context))
        facts = reading.accepted
        try:
            first = response()
            first.accepted.CopyFrom(codec.accepted(facts))
            yield first
            while pieces := await reading.take():
                for piece in pieces:
                    carrier = response()
                    codec.fill_tokens(carrier.tokens, piece, facts)
                    yield carrier
            closed = await reading.ended()
            if error := reading.error:
                raise error
            last = response()
            last.done.CopyFrom(codec.done(closed))
            yield last
        finally:
            reading.leave()

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
