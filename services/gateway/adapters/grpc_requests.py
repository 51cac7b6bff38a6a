"""Messages that cannot be read are the caller's fault, and refused as such."""

from __future__ import annotations

import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from kit.errors import invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]


class ParsingInterceptor(grpc.aio.ServerInterceptor):
    """Parses unary requests inside the handler, where a refusal can still be said."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the method's handler; it takes bytes where it took a message."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        parse = handler.request_deserializer
        if handler.response_streaming and inspect.isasyncgenfunction(handler.unary_stream):
            stream = _parsing_stream(handler.unary_stream, parse)
            return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)
        if inspect.iscoroutinefunction(handler.unary_unary):
            unary = _parsing_unary(handler.unary_unary, parse)
            return grpc.unary_unary_rpc_method_handler(unary, None, handler.response_serializer)
        return handler


def _parsing_stream(inner: Any, parse: Any) -> Any:  # noqa: ANN401
    async def call(raw: bytes, context: Context) -> AsyncIterator[Any]:
        async with aclosing(inner(_parsed(raw, parse), context)) as responses:
            async for response in responses:
                yield response

    return call


def _parsing_unary(inner: Any, parse: Any) -> Any:  # noqa: ANN401
    async def call(raw: bytes, context: Context) -> Any:  # noqa: ANN401
        return await inner(_parsed(raw, parse), context)

    return call


def _parsed(raw: bytes, parse: Callable[[bytes], Any]) -> Any:  # noqa: ANN401
    try:
        return parse(raw)
    except (DecodeError, UnicodeDecodeError):
        raise invalid("request", "the message cannot be read: it is no such proto, or not UTF-8") from None
