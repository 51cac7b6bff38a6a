"""Hypothesis strategies for protobuf messages, made from their descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message
    from hypothesis.strategies import SearchStrategy

M = TypeVar("M", bound="Message")
Overrides = dict[str, "SearchStrategy[Any]"]


def messages(kind: type[M], overrides: Mapping[str, SearchStrategy[Any]] | None = None) -> SearchStrategy[M]:
    """Any message of this kind; `overrides` give plain fields of these names, at any depth, values."""
    return _message(cast("Descriptor", kind.DESCRIPTOR), overrides or {})


def _message(descriptor: Descriptor, overrides: Mapping[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    kind = GetMessageClass(descriptor)
    chosen = {field.name: _field(field, overrides) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=chosen).map(lambda members: _build(kind, members))


def _build(kind: type[Message], members: dict[str, Any]) -> Message:
    message = kind()
    for name, value in members.items():
        # Of a oneof the last one counts, as on the wire.
        message.MergeFrom(kind(**{name: value}))
    return message


def _field(field: FieldDescriptor, overrides: Mapping[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    given = overrides.get(field.name) if field.message_type is None else None
    one = given if given is not None else _one(field, overrides)
    return st.lists(one, max_size=4) if field.is_repeated else one


def _one(field: FieldDescriptor, overrides: Mapping[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE if (inner := field.message_type) is not None:
            return st.deferred(lambda: _message(inner, overrides))
        case FieldDescriptor.CPPTYPE_ENUM if field.enum_type is not None:
            known = [value.number for value in field.enum_type.values]
            return st.sampled_from([*known, max(known) + 1, 10**6])
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_FLOAT:
            return st.sampled_from([0.0, 1.0]) | st.floats(width=32)
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return st.floats()
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=20)
        case FieldDescriptor.CPPTYPE_STRING:
            return st.text(st.characters(codec="utf-8"), max_size=20)
    return _integers(field)


def _integers(field: FieldDescriptor) -> SearchStrategy[int]:
    bits = 31 if field.cpp_type in {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32} else 63
    signed = field.cpp_type in {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
    low, high = (-(2**bits), 2**bits - 1) if signed else (0, 2 ** (bits + 1) - 1)
    return st.integers(0, 8) | st.sampled_from([low, high]) | st.integers(low, high)
