"""The SDK: typed, asynchronous, one connection.

async with Client("127.0.0.1:9090", "tl-...") as client:
    async for event in client.generate("smollm2-135m-instruct", "Once upon a time", max_output_tokens=64):
        match event:
            case Tokens():
                print(event.text, end="")
            case Done():
                print(FinishReason.Name(event.finish_reason))
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias, TypedDict, TypeVar, Unpack

import grpc

from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.inference.v1 import inference_pb2_grpc as pb_grpc
from tokenloom.api.inference.v1.inference_pb2 import Accepted, Done, FinishReason, Tokens
from tokenloom.errors import TokenloomError, error_from

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

PUBLICLY_TRUSTED = "system"
# The server ends a request at its deadline and says so: the call itself waits a little longer for that.
_DEADLINE_MARGIN_S = 5.0
_UNARY_TIMEOUT_S = 30.0
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
)


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
    `system`, to one that is publicly trusted.
    """

    def __init__(self, target: str, api_key: str, *, ca: str | os.PathLike[str] | None = None) -> None:
        self._channel = _channel(target, ca)
        self._stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    @classmethod
    def from_env(cls) -> Self:
        """Connect to TOKENLOOM_GRPC_TARGET with TOKENLOOM_API_KEY, and over TLS where TOKENLOOM_CA is set.

        KeyError names the one that is missing.
        """
        known = os.environ
        return cls(known["TOKENLOOM_GRPC_TARGET"], known["TOKENLOOM_API_KEY"], ca=known.get("TOKENLOOM_CA"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; running generations are cancelled."""
        await self._channel.close()

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        *,
        deadline_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Event, None]:
        """Yield `Accepted`, then `Tokens`, then `Done`. What is left out takes the server's default.

        Leaving the loop, closing the generator or cancelling the task cancels the generation. `deadline_s`
        ends it with what was produced so far and the finish reason DEADLINE.
        """
        request = pb.GenerateRequest(model=model, **options)
        if deadline_s is not None:
            request.deadline_ms = round(deadline_s * 1000)
        _set_prompt(request, prompt)
        timeout = None if deadline_s is None else deadline_s + _DEADLINE_MARGIN_S
        call = self._stub.Generate(request, metadata=self._metadata, timeout=timeout)
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

    async def cancel(self, request_id: str) -> pb.GenerationState:
        """End a generation, whoever reads it; returns the state it was in."""
        return (await self._unary(self._stub.Cancel, pb.CancelRequest(request_id=request_id))).state

    async def get(self, request_id: str) -> pb.GetResponse:
        """A generation's state and output so far."""
        return await self._unary(self._stub.Get, pb.GetRequest(request_id=request_id))

    async def list_models(self) -> Sequence[pb.Model]:
        """The models this key may use."""
        return (await self._unary(self._stub.ListModels, pb.ListModelsRequest())).models

    async def count_tokens(
        self, model: str, prompt: str | Sequence[Mapping[str, str]]
    ) -> pb.CountTokensResponse:
        """The prompt's token ids, as `generate` would count them."""
        request = pb.CountTokensRequest(model=model)
        _set_prompt(request, prompt)
        return await self._unary(self._stub.CountTokens, request)

    async def _unary(
        self, method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        try:
            return await method(request, metadata=self._metadata, timeout=_UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from None


def _channel(target: str, ca: str | os.PathLike[str] | None) -> grpc.aio.Channel:
    if not ca:
        return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
    roots = None if ca == PUBLICLY_TRUSTED else Path(ca).read_bytes()
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(roots), options=_CHANNEL_OPTIONS)


def _set_prompt(request: pb.GenerateRequest | pb.CountTokensRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.prompt = prompt
        return
    for part in prompt:
        if isinstance(part, Mapping):
            request.messages.messages.add(role=part["role"], content=part["content"])
        elif isinstance(request, pb.GenerateRequest):
            request.prompt_token_ids.ids.append(part)
