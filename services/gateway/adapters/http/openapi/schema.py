"""Small words for JSON Schema."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
MILLISECONDS: Schema = {"type": "number", "minimum": 0}
TIME: Schema = {"type": "string", "format": "date-time"}


def ref(name: str) -> Schema:
    """A schema of the document by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, **limits: int) -> Schema:
    """A list of like things."""
    return {"type": "array", "items": items, **limits}


def words(*allowed: str) -> Schema:
    """One of some words."""
    return {"type": "string", "enum": list(allowed)}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    if schema == {} or NULL in schema.get("anyOf", ()):
        return schema
    said: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    return {"anyOf": [{key: value for key, value in schema.items() if key not in said}, NULL], **said}


def record(members: Schema, optional: Schema | None = None) -> Schema:
    """An object whose `members` are always there and whose `optional` ones may be."""
    optional = optional or {}
    return {"type": "object", "properties": members | optional, "required": list(members)}
