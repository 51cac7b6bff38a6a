"""The document names exactly the routes and fields of the server."""

import jsonschema_rs
import pytest

from kit.errors import ServiceError
from services.gateway.adapters.http.native import NativeFace
from services.gateway.adapters.http.openai import OpenAIFace
from services.gateway.adapters.http.openapi import DocumentFace, document
from services.gateway.adapters.http.operations import OperationsFace
from services.gateway.adapters.http.usage import UsageFace
from services.gateway.core.openai_request import (
    HARMLESS,
    MAPPED,
    MESSAGE_NEUTRAL,
    NEUTRAL,
    SAME,
    parse_openai,
)
from services.gateway.core.spec import ChatMessage, GenerationSpec
from services.gateway.core.validation import LATER, parse_generation

DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]
GOOD = {"model": "m", "prompt": "x"}


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def test_every_route_is_in_the_document_and_every_path_of_it_is_served():
    faces = [
        NativeFace(None, None),
        OpenAIFace(None, None),
        UsageFace(None, None),
        OperationsFace(None, None),
        DocumentFace(),
    ]
    served = {(route.method, route.path) for face in faces for route in face.routes()}
    written = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert written == served


def test_every_field_of_a_request_is_in_the_document_and_no_other():
    native = set(map(camel, [*GenerationSpec.model_fields, *LATER]))
    assert set(SCHEMAS["GenerationRequest"]["properties"]) == native
    assert set(SCHEMAS["ChatMessage"]["properties"]) == set(ChatMessage.model_fields)
    for face, name in (("chat", "ChatCompletionRequest"), ("completions", "CompletionRequest")):
        assert set(SCHEMAS[name]["properties"]) == SAME | MAPPED[face] | HARMLESS | set(NEUTRAL)
    openai_message = {"role", "content", "name"} | MESSAGE_NEUTRAL
    assert set(SCHEMAS["ChatCompletionMessage"]["properties"]) == openai_message


@pytest.mark.parametrize(
    ("schema", "parse"),
    [
        ("GenerationRequest", parse_generation),
        ("CompletionRequest", lambda body: parse_openai(body, "completions")),
        ("ChatCompletionRequest", lambda body: parse_openai(body, "chat")),
    ],
)
def test_validators_and_document_agree_on_values_at_the_edges_of_every_field(schema, parse):
    validator = jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    )
    turn = {"messages": [{"role": "user", "content": "x"}]}
    good = {"model": "m"} | (turn if "Chat" in schema else {"prompt": "x"})
    for name in SCHEMAS[schema]["properties"]:
        for value in VALUES:
            body = good | {name: value}
            try:
                parse(body)
                accepted = True
            except ServiceError:
                accepted = False
            if not (name == "top_logprobs" and validator.is_valid(body)):  # which needs logprobs besides
                assert accepted == validator.is_valid(body), (name, value)


# Whole numbers are written without a point: JSON Schema takes 1.0 for an integer, the validators do not.
VALUES = (
    *(
        None,
        True,
        False,
        -(2**63) - 1,
        -(2**63),
        -2,
        -1,
        0,
        1,
        2,
        16,
        17,
        20,
        21,
        2**31 - 1,
        2**31,
        2**63 - 1,
    ),
    *(2**63, -0.1, 0.5, 1.0001, 2.0001, "", "x", "x" * 257, "batch", "emperor"),
    *(
        [],
        [""],
        ["x"],
        ["x", "y"],
        ["x"] * 17,
        ["x" * 1025],
        [1],
        [-1],
        [2**31],
        [[1]],
        [["x"]],
        [None],
        [1, "x"],
    ),
    *({}, {"type": "text"}, {"include_usage": True}, {"include_usage": 1}, ["text"], {"1": 2}),
    *([{"role": "user", "content": "x"}], [{"role": "king", "content": "x"}], [{"role": "user"}], [{}]),
    *([{"role": "user", "content": [{"type": "text", "text": "x"}]}], [{"role": "user", "content": [{}]}]),
)


def test_every_schema_is_a_schema():
    for name, schema in SCHEMAS.items():
        jsonschema_rs.meta.validate(schema)
        assert schema.get("type") == "object", name
