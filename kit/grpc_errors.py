"""`ServiceError` <-> google.rpc.Status, and the interceptor that maps whatever a handler raises."""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from kit import log
from kit.errors import Code, ServiceError, invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Behaviour = Callable[..., Any]
    Parse = Callable[[Any], Any]
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
    Check = Callable[[str, Context], None]

DOMAIN = "tokenloom"
# A status travels in headers, whose size is limited.
MESSAGE_CHARS = 400
_DETAILS_KEY = "grpc-status-details-bin"
_log = log.get("grpc")


def to_status(error: ServiceError) -> grpc.Status:
    """The status for `context.abort_with_status`: ErrorInfo always, RetryInfo and BadRequest if they help."""
    message = error.message[:MESSAGE_CHARS]
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if error.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    code: int = getattr(grpc.StatusCode, error.code.name).value[0]
    status = status_pb2.Status(code=code, message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return rpc_status.to_status(status)


def service_error(error: grpc.aio.AioRpcError) -> ServiceError:
    """Read back what a peer refused; a status without details keeps its code's name as the reason."""
    code = error.code()
    result = ServiceError(_code(code), code.name, error.details() or "")
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                _read_detail(result, detail)
    return result


def _read_detail(result: ServiceError, detail: any_pb2.Any) -> None:
    info, retry, bad = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.RetryInfo(),
        error_details_pb2.BadRequest(),
    )
    if detail.Unpack(info):
        result.reason = info.reason
    elif detail.Unpack(retry):
        result.retry_after_ms = retry.retry_delay.ToMilliseconds()
    elif detail.Unpack(bad) and bad.field_violations:
        result.field = bad.field_violations[0].field


def _code(code: grpc.StatusCode) -> Code:
    return Code.__members__.get(code.name, Code.INTERNAL)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler so that a caller always gets a status of the error contract.

    A single request is parsed inside the wrapper, where a refusal can still be said; so is a `check` of the
    caller, given the method and the call's context, which comes before it.
    """

    def __init__(self, check: Check = lambda _method, _context: None) -> None:
        self._check = check

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the method's handler, wrapped by its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
        inner: Behaviour = getattr(handler, kind)
        wrap = _wrap_generator if inspect.isasyncgenfunction(inner) else _wrap_coroutine
        make: Callable[..., Handler] = getattr(grpc, f"{kind}_rpc_method_handler")
        check = functools.partial(self._check, method)
        if handler.request_streaming or handler.request_deserializer is None:
            wrapped = wrap(inner, method, check, lambda request: request)
            return make(wrapped, handler.request_deserializer, handler.response_serializer)
        wrapped = wrap(inner, method, check, handler.request_deserializer)
        return make(wrapped, None, handler.response_serializer)


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"


def _wrap_coroutine(inner: Behaviour, method: str, check: Behaviour, parse: Parse) -> Behaviour:
    async def call(request: object, context: Context) -> object:
        try:
            check(context)
            return await inner(_parsed(request, parse), context)
        except (Exception, asyncio.CancelledError) as error:
            await _abort(error, context, method)

    return call


def _wrap_generator(inner: Behaviour, method: str, check: Behaviour, parse: Parse) -> Behaviour:
    async def call(request: object, context: Context) -> AsyncIterator[object]:
        try:
            check(context)
            async with aclosing(inner(_parsed(request, parse), context)) as messages:
                async for message in messages:
                    yield message
        except (Exception, asyncio.CancelledError) as error:
            await _abort(error, context, method)

    return call


def _parsed(request: object, parse: Parse) -> object:
    try:
        return parse(request)
    except (DecodeError, UnicodeDecodeError):
        raise invalid("request", "the message cannot be read: it is no such proto, or not UTF-8") from None


async def _abort(error: BaseException, context: Context, method: str) -> NoReturn:
    # A cancelled call has nobody to tell; any other CancelledError that escapes would hang the client.
    task = asyncio.current_task()
    left = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
    if left or isinstance(error, grpc.aio.AbortError) or context.cancelled() or context.done():
        raise error
    if not isinstance(error, ServiceError):
        _log.error("call failed", method=method, traceback=log.trace(error))
        error = ServiceError(Code.INTERNAL, "INTERNAL", "the service failed; the operator's log says why")
    await context.abort_with_status(to_status(error))
    raise AssertionError("abort_with_status always raises")
