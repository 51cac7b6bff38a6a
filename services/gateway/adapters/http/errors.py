"""One error contract for every HTTP answer, in the native or the OpenAI spelling."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

import kit.log
from kit.errors import Code, ServiceError, invalid
from services.gateway.adapters.http.wire import json_bytes
from services.gateway.core.openai_response import error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Handler, Middleware

    from services.gateway.core.outcome import FinishReason

OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models")
_log = kit.log.get("http")


def native_error(error: ServiceError) -> dict[str, Any]:
    """`{"error": {...}}` as the native face says it."""
    body: dict[str, Any] = {"code": error.code.name, "reason": error.reason, "message": error.message}
    if error.field:
        body["field"] = error.field
    if error.retry_after_ms is not None:
        body["retryAfterMs"] = error.retry_after_ms
    return {"error": body}


def error_response(
    request: web.BaseRequest,
    error: ServiceError,
    *,
    status: int | None = None,
    finish_reason: FinishReason | None = None,
) -> web.Response:
    """The answer to a request that is refused or failed."""
    openai = request.path.startswith(OPENAI_PATHS)
    body = error_body(error, finish_reason) if openai else native_error(error)
    response = web.Response(
        body=json_bytes(body), status=status or error.code.value, content_type="application/json"
    )
    if error.retry_after_ms is not None:
        response.headers["Retry-After"] = str(max(1, -(-error.retry_after_ms // 1000)))
    if error.code is Code.UNAUTHENTICATED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def contract(refused: Callable[[ServiceError], None]) -> Middleware:
    """The middleware that turns whatever a handler raises into the error contract."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except ServiceError as error:
            if request.method == "POST":  # a generation that was asked for
                refused(error)
            response = error_response(request, error)
        except web.HTTPException as error:
            response = _http_exception(request, error)
        except (HttpProcessingError, web.RequestPayloadError):
            response = error_response(request, invalid("body", "the body cannot be read as sent"))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            _log.error("handler failed", path=request.path, traceback=kit.log.trace(error))
            failure = ServiceError(Code.INTERNAL, "INTERNAL", "the service failed")
            response = error_response(request, failure)
        if not response.prepared and "x-request-id" not in response.headers:
            response.headers["x-request-id"] = f"req-{secrets.token_hex(8)}"
        return response

    return middleware


def _http_exception(request: web.Request, error: web.HTTPException) -> web.Response:
    if isinstance(error, web.HTTPNotFound):
        found = ServiceError(Code.NOT_FOUND, "NOT_FOUND", "there is no such path")
    elif isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request.client_max_size
        found = invalid("body", f"the body must have at most {limit} bytes")
    elif isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        found = ServiceError(
            Code.INVALID_ARGUMENT, "METHOD_NOT_ALLOWED", f"this path takes {allowed}", "method"
        )
    else:
        found = ServiceError(Code.INVALID_ARGUMENT, "INVALID_REQUEST", error.reason)
    response = error_response(request, found, status=error.status)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
