import json

import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.validation import (
    parse_generation,
    parse_json,
    parse_prompt,
    parse_start,
    start_of_each,
)

GOOD = {"model": "m", "prompt": "hello"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
INT64 = 2**63
INT32 = 2**31 - 1


def refusal(data, naming="camel"):
    with pytest.raises(ServiceError) as caught:
        parse_generation(data, naming)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.reason == "INVALID_REQUEST"
    return caught.value


def test_defaults_are_those_of_the_contract():
    spec = parse_generation(GOOD)
    assert (spec.temperature, spec.top_p, spec.top_k, spec.min_p, spec.n) == (1.0, 1.0, 0, 0.0, 1)
    assert (spec.seed, spec.stop, spec.logprobs, spec.max_output_tokens, spec.deadline_ms) == (
        None,
        (),
        None,
        None,
        None,
    )
    assert (spec.ignore_eos, spec.priority) == (False, None)


def test_every_field_arrives_under_both_spellings():
    values = {
        "max_output_tokens": 7,
        "deadline_ms": 1000,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -INT64,
        "stop": ["\n", "END"],
        "n": 16,
        "logprobs": 20,
        "ignore_eos": True,
        "resume": True,
        "priority": "batch",
    }
    camel = {"maxOutputTokens", "deadlineMs", "topP", "topK", "minP", "ignoreEos"}
    renamed = {name.replace("_", "").lower(): name for name in values}
    native = {c: values[renamed[c.lower()]] for c in camel}
    native |= {name: value for name, value in values.items() if "_" not in name}
    from_native = parse_generation(GOOD | native, "camel")
    from_grpc = parse_generation(GOOD | values, "snake")
    assert from_native.model_dump() == from_grpc.model_dump()
    assert from_grpc.stop == ("\n", "END")
    assert from_grpc.seed == -INT64


@pytest.mark.parametrize(
    ("field", "allowed", "bad"),
    [
        ("model", "model name", ["", 7, True, ["m"], "m" * 257, "\ud800"]),
        ("prompt", "non-empty string", ["", 7, True, ["a"], {"a": 1}, "a\udfffb"]),
        ("maxOutputTokens", "from 1 to", [0, -1, 1.0, 1.5, "7", True, 2**31, INT64, 10**400, [1]]),
        ("deadlineMs", "from 1 to", [0, -5, 2.5, "10", False, 2**31, 10**30]),
        (
            "temperature",
            "from 0 to 2",
            [-0.1, 2.1, float("nan"), float("inf"), -float("inf"), "1", True, 10**400, []],
        ),
        ("topP", "above 0", [0, -1, 1.01, float("nan"), float("inf"), "0.5", True]),
        ("topK", "from 0", [-1, 1.0, "5", True, 2**31, 10**400]),
        ("minP", "from 0 to 1", [-0.1, 1.1, float("nan"), "0", False]),
        ("seed", "64-bit", [INT64, -INT64 - 1, 1.0, "1", True, 10**400]),
        ("n", "from 1 to 16", [0, -1, 17, 1.0, "2", True, 10**6]),
        ("logprobs", "from 0 to 20", [-1, 21, 1.0, "5", True]),
        ("ignoreEos", "true or false", [0, 1, "true", []]),
        ("priority", "'interactive', 'standard' or 'batch'", ["high", "", 1, True, "BATCH"]),
        ("stop", "at most 16 strings", ["END", 7, {"a": 1}, ["x"] * 17, ["x"] * 20_000]),
    ],
)
def test_a_bad_value_is_refused_with_the_fields_name_and_what_is_allowed(field, allowed, bad):
    for value in bad:
        error = refusal(GOOD | {field: value})
        assert error.field == field
        assert field in error.message
        assert allowed in error.message


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (GOOD | {"stop": ["ok", "", "also"]}, "stop[1]"),
        (GOOD | {"stop": ["ok", "ok", "ok", 7]}, "stop[3]"),
        (GOOD | {"stop": ["\ud800"]}, "stop[0]"),
        (GOOD | {"stop": ["é" * 513]}, "stop[0]"),
        ({"model": "m", "promptTokenIds": [1, -1]}, "promptTokenIds[1]"),
        ({"model": "m", "promptTokenIds": [1, True]}, "promptTokenIds[1]"),
        ({"model": "m", "promptTokenIds": [1.0]}, "promptTokenIds[0]"),
        ({"model": "m", "promptTokenIds": [2**31]}, "promptTokenIds[0]"),
        ({"model": "m", "promptTokenIds": []}, "promptTokenIds"),
        ({"model": "m", "promptTokenIds": "12"}, "promptTokenIds"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": {"role": "user"}}, "messages"),
        ({"model": "m", "messages": ["hello"]}, "messages[0]"),
        ({"model": "m", "messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"model": "m", "messages": [{"content": "x"}]}, "messages[0].role"),
        ({"model": "m", "messages": [{"role": "user"}]}, "messages[0].content"),
        ({"model": "m", "messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"model": "m", "messages": [{"role": "user", "content": "\udc00"}]}, "messages[0].content"),
        (
            {"model": "m", "messages": [*CHAT["messages"], {"role": "user", "content": 5}]},
            "messages[1].content",
        ),
        ({"model": "m", "messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"prompt": "x"}, "model"),
    ],
)
def test_the_element_at_fault_is_named(data, field):
    assert refusal(data).field == field


def test_a_grpc_caller_reads_grpc_names():
    assert refusal(GOOD | {"max_output_tokens": 0}, "snake").field == "max_output_tokens"
    assert refusal(GOOD | {"maxOutputTokens": 1}, "snake").field == "maxOutputTokens"
    assert refusal({"model": "m", "prompt_token_ids": [-1]}, "snake").field == "prompt_token_ids[0]"


@pytest.mark.parametrize("stop", ["x" * 1024, "é" * 512])
def test_a_stop_string_may_have_1024_bytes(stop):
    assert parse_generation(GOOD | {"stop": [stop] * 16}).stop == (stop,) * 16


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"model": "m"}, "prompt"),
        (GOOD | CHAT, "prompt"),
        (GOOD | {"promptTokenIds": [1]}, "prompt"),
        (CHAT | {"promptTokenIds": [1]}, "promptTokenIds"),
    ],
)
def test_exactly_one_input_is_taken(data, field):
    error = refusal(data)
    assert error.field == field
    assert "exactly one of prompt, promptTokenIds, messages" in error.message


def test_null_is_as_good_as_missing():
    assert parse_generation(GOOD | {"temperature": None, "stop": None, "messages": None}).temperature == 1.0
    assert refusal({"model": None, "prompt": "x"}).field == "model"


@pytest.mark.parametrize(
    ("field", "neutral", "changing"),
    [
        ("presencePenalty", 0, 0.5),
        ("frequencyPenalty", 0.0, -1),
        ("repetitionPenalty", 1.0, 1.1),
        ("logitBias", {}, {"5": 1}),
        ("minTokens", 0, 3),
    ],
)
def test_a_field_that_comes_later_is_refused_unless_it_changes_nothing(field, neutral, changing):
    parse_generation(GOOD | {field: neutral})
    error = refusal(GOOD | {field: changing})
    assert error.field == field
    assert "not supported yet" in error.message


def test_false_is_no_penalty_of_zero():
    assert refusal(GOOD | {"presencePenalty": False}).field == "presencePenalty"


@pytest.mark.parametrize("name", ["flavour", "max_output_tokens", "Temperature", "", "stream"])
def test_an_unknown_field_is_refused_by_name(name):
    assert refusal(GOOD | {name: 1}).field == name


def test_an_unknown_name_is_made_printable_and_short():
    error = refusal(GOOD | {"a\n\ud800" + "x" * 5000: 1})
    assert error.field.startswith("a\\n\\ud800x")
    assert len(error.field) <= 64
    assert error.message.isprintable()


@pytest.mark.parametrize("data", [None, [], "x", 7, True])
def test_a_body_that_is_no_object_is_refused(data):
    assert refusal(data).field == "body"


def test_no_refusal_echoes_what_it_refuses():
    secret = "my secret prompt"
    for data in (
        {"model": "m", "prompt": "\ud800" + secret},
        {"model": "m", "messages": [{"role": secret, "content": "x"}]},
        {"model": "m", "messages": [secret]},
        GOOD | {"stop": secret},
        GOOD | {"temperature": secret},
        {"model": 7, "prompt": secret},
    ):
        assert secret not in str(refusal(data))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"prompt": "\xc3\x28"}',
        b"[" * 200_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_json_is_refused(body):
    with pytest.raises(ServiceError) as caught:
        parse_json(body)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "body")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("number", [b"1e999", b"NaN", b"-Infinity"])
def test_a_number_that_is_not_finite_is_refused_by_its_field(number):
    data = parse_json(b'{"model": "m", "prompt": "x", "temperature": %s}' % number)
    assert refusal(data).field == "temperature"


def test_escaped_lone_surrogates_do_not_pass():
    data = parse_json(json.dumps({"model": "m", "prompt": "\ud800"}).encode())
    assert refusal(data).field == "prompt"


def test_count_tokens_takes_a_prompt_or_messages_only():
    assert parse_prompt(GOOD).prompt == "hello"
    assert parse_prompt(CHAT, "snake").messages is not None
    for data, field in (
        ({"model": "m"}, "prompt"),
        (GOOD | {"temperature": 1}, "temperature"),
        (GOOD | CHAT, "prompt"),
    ):
        with pytest.raises(ServiceError) as caught:
            parse_prompt(data)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "choices", "each"),
    [
        ("0", 3, (0, 0, 0)),
        ("7", 1, (7,)),
        ("7", 2, (7, 7)),
        ("7,0,12", 3, (7, 0, 12)),
        ("2147483647", 1, (INT32,)),
    ],
)
def test_a_reader_starts_at_one_index_of_every_choice_or_at_one_of_each(text, choices, each):
    assert start_of_each(parse_start(text, "from"), choices, "from") == each


def test_a_reader_that_says_nothing_starts_at_the_first_token():
    assert start_of_each((), 2, "from_index") == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1.5",
        "x",
        "1,",
        ",1",
        "1 ",
        "\uff11",
        "2147483648",
        "9" * 5000,
        ",".join("1" * 17),
        "0x1",
        "1e1",
    ],
)
def test_a_start_that_is_no_index_is_refused_by_its_field(text):
    with pytest.raises(ServiceError) as caught:
        parse_start(text, "from")
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "from")
    assert len(caught.value.message) < 200


def test_a_start_for_more_or_fewer_choices_than_there_are_is_refused():
    for indices, choices in (((1, 2), 1), ((1, 2), 3), ((1, 2, 3), 2)):
        with pytest.raises(ServiceError) as caught:
            start_of_each(indices, choices, "from")
        assert caught.value.field == "from"
