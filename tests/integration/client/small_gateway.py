"""A small gateway with the real contract's shapes: what it is asked is kept, what it answers is scripted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from kit.errors import Code, ServiceError, invalid
from kit.grpc import Server
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.inference.v1 import inference_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "tl-test"
ROW = {
    "requestId": "gen-1",
    "modelVersion": "m@1",
    "inputTokens": 5,
    "outputTokens": 3,
    "finishReason": "stop",
}


class SmallGateway(pb_grpc.InferenceServiceServicer):
    """Says "one two three"; the prompt may ask for a refusal, or for a stream without end.

    Each entry of `breaks` is how many tokens a stream says before it breaks: -1 before it is accepted. With
    `quiet` it ends there as if all were well.
    """

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.attaches: list[pb.AttachRequest] = []
        self.breaks: list[int] = []
        self.quiet = False
        self.last_words = ""
        self.time_left: list[float | None] = []
        self.cancelled = asyncio.Event()
        self.queries: list[dict[str, str]] = []
        self.models = ["m"]

    async def Generate(self, request, context) -> AsyncIterator[pb.GenerateResponse]:
        _authenticate(context)
        self.requests.append(request)
        self.time_left.append(context.time_remaining())
        if request.prompt == "bad":
            raise invalid("stop[0]", "must not be empty")
        if request.prompt == "busy":
            raise ServiceError(
                Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", "the queue is full", retry_after_ms=1500
            )
        if request.prompt == "endless":  # it ends by being cancelled, wherever it is then
            context.add_done_callback(lambda _: self.cancelled.set())
        async for event in self._stream(list(range(request.n or 1)), [0]):
            if event is None:
                return
            yield pb.GenerateResponse(**event)
        if request.prompt == "endless":
            await asyncio.Event().wait()
        yield pb.GenerateResponse(
            done=pb.Done(finish_reason=pb.FINISH_REASON_STOP, input_tokens=5, output_tokens=3)
        )

    async def Attach(self, request, context) -> AsyncIterator[pb.AttachResponse]:
        _authenticate(context)
        self.attaches.append(request)
        if request.request_id not in {"gen-1", "key:k"}:
            raise ServiceError(Code.NOT_FOUND, "NOT_FOUND", "there is no such generation")
        async for event in self._stream([0], list(request.from_index)):
            if event is None:
                return
            yield pb.AttachResponse(**event)
        yield pb.AttachResponse(
            done=pb.Done(finish_reason=pb.FINISH_REASON_STOP, input_tokens=5, output_tokens=3)
        )

    async def _stream(self, choices, starts):
        """Accepted, and the tokens of every choice in turn; breaks off when it is time."""
        left = self.breaks.pop(0) if self.breaks else None
        if left is not None and left < 0:
            if self.quiet:
                yield None
            raise _broken()
        yield {"accepted": pb.Accepted(request_id="gen-1", model_version="m@1")}
        starts = starts if len(starts) > 1 else starts * len(choices)
        for index, text in enumerate(("one ", "two ", "three")):
            for choice in choices:
                if index < starts[choice]:
                    continue
                if left == 0:
                    if self.quiet:
                        yield None
                    raise _broken()
                left = None if left is None else left - 1
                tokens = pb.Tokens(choice=choice, index=index, count=1, text=text, token_ids=[index])
                yield {"tokens": tokens}
        if self.last_words:
            end = pb.Tokens(index=3, text=self.last_words, finish_reason=pb.FINISH_REASON_STOP)
            yield {"tokens": end}
        if left == 0:
            raise _broken()

    async def Cancel(self, request, context):
        _authenticate(context)
        if request.request_id != "gen-1":
            raise ServiceError(Code.NOT_FOUND, "NOT_FOUND", "no such generation")
        return pb.CancelResponse(state=pb.GENERATION_STATE_RUNNING)

    async def Get(self, request, context):
        return pb.GetResponse(request_id=request.request_id, state=pb.GENERATION_STATE_FINISHED)

    async def ListModels(self, request, context):
        _authenticate(context)
        return pb.ListModelsResponse(
            models=[pb.Model(name=name, version=f"{name}@1") for name in self.models]
        )

    async def CountTokens(self, request, context):
        count = len(request.prompt.split()) + len(request.messages.messages)
        return pb.CountTokensResponse(count=count, token_ids=range(count))

    async def usage(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            body = {"error": {"code": 401, "reason": "INVALID_API_KEY", "message": "the key is not known"}}
            return web.json_response(body, status=401)
        return web.json_response(
            {"data": [ROW] if request.query.get("requestId", "gen-1") == "gen-1" else []}
        )


class Running:
    """A small gateway that listens."""

    def __init__(self) -> None:
        self.gateway = SmallGateway()
        self._server = Server("127.0.0.1:0")
        self._runner = web.AppRunner(web.Application())

    async def __aenter__(self) -> Running:
        pb_grpc.add_InferenceServiceServicer_to_server(self.gateway, self._server.aio)
        self.target = await self._server.start(["tokenloom.api.inference.v1.InferenceService"])
        self._runner.app.router.add_get("/v1/usage", self.gateway.usage)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(0)
        await self._runner.cleanup()


def _broken() -> ServiceError:
    return ServiceError(Code.UNAVAILABLE, "DRAINING", "this gateway is shutting down")


def _authenticate(context) -> None:
    if ("authorization", f"Bearer {KEY}") not in context.invocation_metadata():
        raise ServiceError(Code.UNAUTHENTICATED, "INVALID_API_KEY", "the key is not known")


async def collect(events):
    return [event async for event in events]
