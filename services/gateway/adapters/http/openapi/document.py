"""The document: paths, what they take, what they answer and how they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.gateway.adapters.http.openapi import refusals
from services.gateway.adapters.http.openapi.native import ID, native
from services.gateway.adapters.http.openapi.openai import openai
from services.gateway.adapters.http.openapi.requests import requests
from services.gateway.adapters.http.openapi.schema import TEXT, Schema, record, ref, words
from tokenloom import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.gateway.adapters.http.openapi.refusals import Refusal

_KEY: list[Schema] = [{"key": []}]
_EVENTS = "text/event-stream"
_NATIVE_EVENTS = {"accepted": "Accepted", "token": "Token", "done": "Done", "error": "Error"}
_PAGE_SIZE = {"type": "integer", "minimum": 1, "maximum": 1000}


def _parameter(name: str, place: str, schema: Schema, description: str) -> Schema:
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "schema": schema, "description": description, **required}


_KEY_HEADER = [
    _parameter(
        "Idempotency-Key",
        "header",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
        "the caller's own name for this generation: the same again follows it, or replays its result",
    )
]


def document() -> Schema:
    """OpenAPI 3.1 of everything that this gateway serves over HTTP."""
    health = {"Health": record({"status": words("ok")}), "Unhealthy": _unhealthy()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tokenloom",
            "version": __version__,
            "description": "Generations and their bills. A member whose value is null counts as missing.",
        },
        "paths": _native_paths() | _openai_paths() | _operation_paths(),
        "components": {
            "schemas": requests() | native() | openai() | health,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _native_paths() -> Schema:
    named = [_parameter("id", "path", TEXT, "the id of a generation, or key:<Idempotency-Key>")]
    return {
        "/v1/generations": {
            "post": _operation(
                "Run one generation; as events where `Accept` says text/event-stream.",
                _json("Generation") | _events(_NATIVE_EVENTS),
                _native(refusals.GENERATING),
                _KEY_HEADER,
                body="GenerationRequest",
            )
        },
        "/v1/generations/{id}": {
            "get": _operation(
                "State and, when finished, the result; with `from`, the events from that token on.",
                _json("Snapshot") | _events(_NATIVE_EVENTS),
                _native(refusals.FOLLOWING),
                named + _start(),
            ),
            "delete": _operation("End a generation.", _json("Cancelled"), _native(refusals.NAMING), named),
        },
        "/v1/usage": {
            "get": _operation(
                "The caller's ledger rows, newest first.",
                _json("UsagePage"),
                _native((*refusals.READING, refusals.CONTENDED)),
                _usage_query(),
            )
        },
    }


def _openai_paths() -> Schema:
    generating = _openai(refusals.GENERATING)
    chat = _json("ChatCompletion") | _openai_events("ChatCompletionChunk")
    completion = _json("Completion") | _openai_events("Completion")
    named = [_parameter("model", "path", TEXT, "a name or name@version")]
    return {
        "/v1/chat/completions": {
            "post": _operation(
                "Continue a conversation.", chat, generating, _KEY_HEADER, body="ChatCompletionRequest"
            )
        },
        "/v1/completions": {
            "post": _operation(
                "Continue a prompt.", completion, generating, _KEY_HEADER, body="CompletionRequest"
            )
        },
        "/v1/models": {
            "get": _operation(
                "The models that the caller may use.", _json("ModelList"), _openai(refusals.READING)
            )
        },
        "/v1/models/{model}": {
            "get": _operation("One model.", _json("Model"), _openai(refusals.READING), named)
        },
    }


def _operation_paths() -> Schema:
    down = {"503": {"description": "and why not", "content": _json("Unhealthy")}}
    metrics = {"text/plain": {"schema": TEXT}}
    itself = {"application/json": {"schema": {"type": "object"}}}
    return {
        "/health": {"get": _open("Whether generations would be answered.", _json("Health"), down)},
        "/metrics": {"get": _open("Prometheus' text format.", metrics)},
        "/openapi.json": {"get": _open("This document.", itself)},
    }


def _operation(
    summary: str,
    content: Schema,
    refused: Schema,
    parameters: list[Schema] | None = None,
    body: str = "",
) -> Schema:
    operation = _open(summary, content, refused) | {"security": _KEY}
    if parameters:
        operation["parameters"] = parameters
    if body:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _open(summary: str, content: Schema, refused: Schema | None = None) -> Schema:
    answers = {"200": {"description": "the answer", "content": content}} | (refused or {})
    return {"summary": summary, "responses": answers}


def _start() -> list[Schema]:
    first = {"type": "string", "pattern": "^[0-9]{1,10}(,[0-9]{1,10})*$"}
    return [
        _parameter("from", "query", first, "the first token wanted of every choice, or one for each"),
        _parameter("Last-Event-ID", "header", first, "the same, as a client says that reconnects by itself"),
    ]


def _usage_query() -> list[Schema]:
    return [
        _parameter("requestId", "query", ID, "the id of a generation"),
        _parameter("from", "query", {"type": "string"}, "opened at or after; an RFC 3339 time"),
        _parameter("to", "query", {"type": "string"}, "opened before; an RFC 3339 time"),
        _parameter("pageSize", "query", _PAGE_SIZE, "rows a page"),
        _parameter("pageToken", "query", TEXT, "`nextPageToken` of the page before"),
    ]


def _json(name: str) -> Schema:
    return {"application/json": {"schema": ref(name)}}


def _events(kinds: dict[str, str]) -> Schema:
    """Server-sent events: OpenAPI 3.1 cannot say what is in them, `x-events` can."""
    return {_EVENTS: {"schema": {}, "x-events": {kind: ref(name) for kind, name in kinds.items()}}}


def _openai_events(chunk: str) -> Schema:
    return _events({"message": chunk, "error": "OpenAIError"})


def _native(kinds: Iterable[Refusal]) -> Schema:
    return _refused(kinds, refusals.native_error)


def _openai(kinds: Iterable[Refusal]) -> Schema:
    return _refused(kinds, refusals.openai_error)


def _refused(kinds: Iterable[Refusal], body: Callable[[Refusal], Schema]) -> Schema:
    return {
        str(kind.status): {
            "description": kind.when,
            "content": {"application/json": {"schema": body(kind)}},
        }
        for kind in kinds
    }


def _unhealthy() -> Schema:
    return record({"status": words("unavailable"), "reason": TEXT})
