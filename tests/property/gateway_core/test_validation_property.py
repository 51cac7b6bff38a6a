"""Whatever arrives, the answer is a spec or a refusal of the contract."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kit.errors import Code, ServiceError
from services.gateway.core.openai_request import parse_openai
from services.gateway.core.spec import GenerationSpec
from services.gateway.core.validation import parse_generation, parse_json

SECRET = "s3cret-prompt"
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from([2**31, 2**63, -(2**63) - 1, 10**400, SECRET, "\ud800" + SECRET])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NATIVE = [
    "model", "prompt", "promptTokenIds", "messages", "maxOutputTokens", "deadlineMs", "temperature", "topP",
    "topK", "minP", "seed", "stop", "n", "logprobs", "ignoreEos", "priority", "resume", "logitBias",
]  # fmt: skip
OPENAI = [
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "seed", "stop", "n", "logprobs", "top_logprobs", "stream", "stream_options", "tools",
    "response_format", "user",
]  # fmt: skip


def bodies(names, good):
    """Objects with known and unknown names, most of them around a good request."""
    fields = st.dictionaries(st.sampled_from(names) | st.text(max_size=3), JSON, max_size=4)
    return JSON | fields | fields.map(lambda body: good | body)


def check(parse):
    try:
        return parse()
    except ServiceError as refused:
        error = refused
    assert error.code is Code.INVALID_ARGUMENT
    assert error.field.isprintable()
    assert error.message.isprintable()
    assert len(error.message) < 400
    assert SECRET not in error.message
    return None


@given(bodies(NATIVE, {"model": "m", "prompt": "hi"}))
def test_native_bodies_never_break_the_validator(body):
    spec = check(lambda: parse_generation(body))
    if spec is not None:
        json.dumps(spec.model_dump(), allow_nan=False, ensure_ascii=False).encode()
        inputs = (spec.prompt, spec.prompt_token_ids, spec.messages)
        assert sum(given is not None for given in inputs) == 1


@given(
    bodies(OPENAI, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    st.sampled_from(["chat", "completions"]),
)
def test_openai_bodies_never_break_the_mapping(body, face):
    request = check(lambda: parse_openai(body, face))
    assert request is None or isinstance(request.spec, GenerationSpec)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_never_break_the_decoder(body):
    check(lambda: parse_json(body))
