"""The SDK: typed, asynchronous, one connection to each gateway.

async with Client("127.0.0.1:9090", "tl-...") as client:
    async for event in client.generate("smollm2-135m-instruct", "Once upon a time", max_output_tokens=64):
        match event:
            case Tokens():
                print(event.text, end="")
            case Done():
                print(FinishReason.Name(event.finish_reason))
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Self, TypeAlias, TypedDict, TypeVar, Unpack

import grpc

from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.inference.v1 import inference_pb2_grpc as pb_grpc
from tokenloom.api.inference.v1.inference_pb2 import Accepted, Done, FinishReason, Tokens
from tokenloom.connection import Gateway, other_targets
from tokenloom.errors import TokenloomError, error_from
from tokenloom.following import Position
from tokenloom.retry import Backoff, Retries, RetryBudget

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "Accepted", "Client", "Done", "Event", "FinishReason", "GenerateOptions", "Prompt", "TokenloomError",
    "Tokens",
]  # fmt: skip

Event: TypeAlias = Accepted | Tokens | Done
# Raw text, token ids, or a conversation of {"role": ..., "content": ...}.
Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]]
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
if TYPE_CHECKING:
    Stub: TypeAlias = pb_grpc.InferenceServiceAsyncStub
    Method: TypeAlias = grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]
    Stream: TypeAlias = (
        grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]
        | grpc.aio.UnaryStreamCall[pb.AttachRequest, pb.AttachResponse]
    )

# The server ends a request at its deadline and says so: the call itself waits a little longer for that.
_DEADLINE_MARGIN_S = 5.0
_UNARY_TIMEOUT_S = 30.0
_UNARY_BACKOFF = Backoff(attempts=3)
# How long a retry waits for a connection: longest where there is no other gateway to turn to.
_UNARY_CONNECT_S, _OTHER_CONNECT_S, _ONLY_CONNECT_S = 0.2, 1.0, 4.0


class GenerateOptions(TypedDict, total=False):
    """How to generate, as in `GenerateRequest`; every one is optional."""

    max_output_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: Sequence[str]
    n: int
    logprobs: int
    ignore_eos: bool
    priority: pb.Priority


class Client:
    """A connection to a gateway; use it as an async context. Every method raises `TokenloomError`.

    With `ca` it speaks TLS, to a gateway that the authorities in that PEM file vouch for, or, for the word
    `system`, to one that is publicly trusted. `others` are further gateways of the same platform, to turn to
    when one is away. Only what may be repeated is tried again: everything but a generation without a key.
    """

    def __init__(
        self,
        target: str,
        api_key: str,
        *,
        others: Sequence[str] = (),
        ca: str | os.PathLike[str] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    ) -> None:
        self._gateways = [Gateway(one, ca) for one in (target, *others)]
        self._at = 0
        self._metadata = (("authorization", f"Bearer {api_key}"),)
        self._backoff, self._budget = backoff, RetryBudget()

    @classmethod
    def from_env(cls) -> Self:
        """Connect to TOKENLOOM_GRPC_TARGET with TOKENLOOM_API_KEY, and over TLS where TOKENLOOM_CA is set.

        TOKENLOOM_GRPC_TARGET_2 and so on are further gateways. KeyError names what is missing.
        """
        known = os.environ
        target, key = known["TOKENLOOM_GRPC_TARGET"], known["TOKENLOOM_API_KEY"]
        return cls(target, key, others=list(other_targets(known)), ca=known.get("TOKENLOOM_CA"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running generations without a key or `resume` are cancelled."""
        await asyncio.gather(*(gateway.channel.close() for gateway in self._gateways))

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        *,
        idempotency_key: str | None = None,
        resume: bool = False,
        deadline_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Event, None]:
        """Yield `Accepted`, then `Tokens`, then `Done`. What is left out takes the server's default.

        Leaving the loop, closing the generator or cancelling the task cancels the generation. `deadline_s`
        ends it with what was produced so far and the finish reason DEADLINE.

        With `idempotency_key` or `resume` it outlives its reader for a while (`cancel` ends it), and a stream
        that breaks is taken up where it broke, through any gateway. The same key with the same content is the
        same generation.
        """
        request = pb.GenerateRequest(model=model, resume=resume, **options)
        if idempotency_key is not None:
            request.idempotency_key = idempotency_key
        _set_prompt(request, prompt)
        position = Position(choices=options.get("n", 1))
        until = None if deadline_s is None else time.monotonic() + deadline_s
        async with aclosing(self._follow(position, until, request)) as events:
            async for event in events:
                yield event

    async def attach(
        self, request_id: str, from_index: int | Sequence[int] = 0
    ) -> AsyncGenerator[Event, None]:
        """Follow a generation from a token on, of every choice or one for each: as `generate` yields it.

        `request_id` is the id from `Accepted`, or "key:" and the idempotency key. Leaving ends nothing but
        the last reader of a generation.
        """
        async with aclosing(self._follow(Position(request_id, from_index))) as events:
            async for event in events:
                yield event

    async def cancel(self, request_id: str) -> pb.GenerationState:
        """End a generation, whoever reads it; returns the state it was in."""
        request = pb.CancelRequest(request_id=request_id)
        return (await self._unary(lambda stub: stub.Cancel, request)).state

    async def get(self, request_id: str) -> pb.GetResponse:
        """A generation's state and output so far."""
        return await self._unary(lambda stub: stub.Get, pb.GetRequest(request_id=request_id))

    async def list_models(self) -> Sequence[pb.Model]:
        """The models this key may use."""
        return (await self._unary(lambda stub: stub.ListModels, pb.ListModelsRequest())).models

    async def count_tokens(
        self, model: str, prompt: str | Sequence[Mapping[str, str]]
    ) -> pb.CountTokensResponse:
        """The prompt's token ids, as `generate` would count them."""
        request = pb.CountTokensRequest(model=model)
        _set_prompt(request, prompt)
        return await self._unary(lambda stub: stub.CountTokens, request)

    async def _unary(
        self, method: Callable[[Stub], Method[RequestT, ResponseT]], request: RequestT
    ) -> ResponseT:
        retries = Retries(self._budget, _UNARY_BACKOFF)
        while True:
            at = self._at
            call = method(self._gateways[at].stub)
            try:
                return await call(request, metadata=self._metadata, timeout=_UNARY_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                await self._retry(error_from(error), retries, at, _UNARY_CONNECT_S)

    async def _follow(
        self, position: Position, until: float | None = None, request: pb.GenerateRequest | None = None
    ) -> AsyncGenerator[Event, None]:
        retries = Retries(self._budget, self._backoff)
        while not position.done:
            at = self._at
            try:
                async with aclosing(_events(self._call(at, position, until, request))) as events:
                    async for event in events:
                        if position.take(event):
                            retries.progress()
                            yield event
                if not position.done:
                    raise TokenloomError("UNAVAILABLE", "STREAM_ENDED", "the stream ended too early")
            except TokenloomError as error:
                if not _repeatable(request, position):
                    raise
                await self._retry(error, retries, at, self._patience_s)
                if position.choices is None:
                    position.choices = len((await self.get(position.reference)).choices)

    def _call(
        self, at: int, position: Position, until: float | None, request: pb.GenerateRequest | None
    ) -> Stream:
        stub, left = self._gateways[at].stub, None
        if until is not None:
            left = max(0.001, until - time.monotonic())
        timeout = None if left is None else left + _DEADLINE_MARGIN_S
        if position.reference or request is None:
            attach = pb.AttachRequest(request_id=position.reference, from_index=position.from_index())
            return stub.Attach(attach, metadata=self._metadata, timeout=timeout)
        if left is not None:
            request.deadline_ms = max(1, round(left * 1000))
        return stub.Generate(request, metadata=self._metadata, timeout=timeout)

    @property
    def _patience_s(self) -> float:
        return _ONLY_CONNECT_S if len(self._gateways) == 1 else _OTHER_CONNECT_S

    async def _retry(self, error: TokenloomError, retries: Retries, at: int, connect_s: float) -> None:
        """Wait until the next try, at another gateway if there is one; raises `error` when there is none."""
        delay_s = retries.next(error.retry_after) if error.code == "UNAVAILABLE" else None
        if delay_s is None:
            raise error
        await asyncio.sleep(delay_s)
        if self._at == at:
            self._at = (at + 1) % len(self._gateways)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(connect_s):
                await self._gateways[self._at].channel.channel_ready()


def _repeatable(request: pb.GenerateRequest | None, position: Position) -> bool:
    """Whether another try can start no second generation."""
    return request is None or bool(request.idempotency_key or (request.resume and position.reference))


async def _events(call: Stream) -> AsyncGenerator[Event, None]:
    try:
        async for response in call:
            match response.WhichOneof("event"):
                case "accepted":
                    yield response.accepted
                case "tokens":
                    yield response.tokens
                case "done":
                    yield response.done
    except grpc.aio.AioRpcError as error:
        raise error_from(error) from None
    finally:
        # Leaving an `async for` over a call does not end it.
        call.cancel()


def _set_prompt(request: pb.GenerateRequest | pb.CountTokensRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.prompt = prompt
        return
    for part in prompt:
        if isinstance(part, Mapping):
            request.messages.messages.add(role=part["role"], content=part["content"])
        elif isinstance(request, pb.GenerateRequest):
            request.prompt_token_ids.ids.append(part)
