"""Holds answers against an OpenAPI document, member by member."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema_rs

Json = dict[str, Any]
EVENTS = "text/event-stream"


class Contract:
    """A document that must name every member of every answer; `seen` are the members met so far."""

    def __init__(self, document: Json) -> None:
        self._document = copy.deepcopy(document)
        self._components = {"components": _closed(self._document["components"])}
        self._validators: dict[str, Any] = {}
        self.seen: set[str] = set()

    @property
    def operations(self) -> set[tuple[str, str]]:
        """(METHOD, path) of all."""
        paths = self._document["paths"]
        return {(method.upper(), path) for path, operations in paths.items() for method in operations}

    def members(self, *schemas: str) -> set[str]:
        """Every member that the named schemas, and what they refer to, may have."""
        found: set[str] = set()
        for name in schemas:
            self._members({"$ref": f"#/components/schemas/{name}"}, name, found)
        return found

    def check(self, method: str, path: str, status: int, content_type: str, body: bytes) -> None:
        """Fail unless the document says that this operation may answer so."""
        answers = self._document["paths"][path][method.lower()]["responses"]
        assert str(status) in answers, f"{method} {path} may not answer {status}"
        media = content_type.partition(";")[0]
        content = answers[str(status)]["content"]
        assert media in content, f"{method} {path} answered {status} in {media}"
        if media == EVENTS:
            self._check_events(content[media]["x-events"], body)
        elif media == "application/json":
            self._check(content[media]["schema"], json.loads(body))

    def _check_events(self, kinds: Json, body: bytes) -> None:
        for name, data in events(body):
            assert name in kinds, f"an event {name}"
            if data != "[DONE]":
                self._check(kinds[name], json.loads(data))

    def _check(self, schema: Json, value: object) -> None:
        key = json.dumps(schema)
        if key not in self._validators:
            closed = _closed(copy.deepcopy(schema)) | self._components
            self._validators[key] = jsonschema_rs.Draft202012Validator(closed)
        self._validators[key].validate(value)
        self._walk(schema, value, schema.get("$ref", "").rpartition("/")[2])

    def _walk(self, schema: Json, value: object, place: str) -> None:
        schema, place = self._resolve(schema, place)
        for branch in schema.get("anyOf", ()):
            self._walk(branch, value, place)
        if isinstance(value, list) and "items" in schema:
            for one in value:
                self._walk(schema["items"], one, place)
        held: dict[str, object] = value if isinstance(value, dict) else {}
        for name, member in schema.get("properties", {}).items():
            if name in held:
                self.seen.add(f"{place}.{name}")
                self._walk(member, held[name], f"{place}.{name}")

    def _members(self, schema: Json, place: str, found: set[str]) -> None:
        schema, place = self._resolve(schema, place)
        for branch in [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]:
            self._members(branch, place, found)
        for name, member in schema.get("properties", {}).items():
            found.add(f"{place}.{name}")
            self._members(member, f"{place}.{name}", found)

    def _resolve(self, schema: Json, place: str) -> tuple[Json, str]:
        if "$ref" not in schema:
            return schema, place
        name = schema["$ref"].rpartition("/")[2]
        return self._document["components"]["schemas"][name], name


def events(body: bytes) -> list[tuple[str, str]]:
    """(name, data) of every server-sent event."""
    found = []
    for block in filter(None, body.decode().split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("event", "message"), fields["data"]))
    return found


def _closed(schema: Any) -> Any:
    """The same with every object closed against members that it does not name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
