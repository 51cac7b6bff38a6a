import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.openai_request import parse_openai

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def refusal(data, face):
    with pytest.raises(ServiceError) as caught:
        parse_openai(data, face)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value


def test_a_plain_call_has_openais_defaults():
    request = parse_openai(CHAT, "chat")
    assert (request.stream, request.include_usage) == (False, False)
    assert (request.spec.temperature, request.spec.n, request.spec.logprobs) == (1.0, 1, None)


def test_sampling_fields_arrive():
    body = {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "n": 2, "seed": 7, "ignore_eos": True}
    spec = parse_openai(TEXT | body, "completions").spec
    assert (spec.temperature, spec.top_p, spec.top_k, spec.min_p) == (0, 0.5, 0, 0.1)
    assert (spec.n, spec.seed, spec.ignore_eos) == (2, 7, True)


def test_what_vllm_bench_serve_sends_is_accepted():
    sent = {
        "repetition_penalty": 1.0,
        "max_tokens": 128,
        "logprobs": None,
        "stream": True,
        "ignore_eos": True,
    }
    request = parse_openai(
        TEXT | sent | {"stream_options": {"include_usage": True}, "temperature": 0.0}, "completions"
    )
    assert (request.stream, request.include_usage, request.spec.max_output_tokens) == (True, True, 128)


@pytest.mark.parametrize("stop", ["END", ["END"]])
def test_stop_is_a_string_or_an_array(stop):
    assert parse_openai(TEXT | {"stop": stop}, "completions").spec.stop == ("END",)


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [("hi", "hi", None), (["hi"], "hi", None), ([1, 2], None, (1, 2)), ([[1, 2]], None, (1, 2))],
)
def test_one_prompt_in_any_of_openais_forms_is_taken(prompt, text, ids):
    spec = parse_openai({"model": "m", "prompt": prompt}, "completions").spec
    assert (spec.prompt, spec.prompt_token_ids) == (text, ids)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (["a", "b"], "prompt"),
        ([[1], [2]], "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt"),
        (None, "prompt"),
        (7, "prompt"),
        ([1, "a"], "prompt[1]"),
        ([1, -2], "prompt[1]"),
        ([True], "prompt[0]"),
    ],
)
def test_several_prompts_or_none_are_refused(prompt, field):
    assert refusal({"model": "m", "prompt": prompt}, "completions").field == field


def test_text_parts_are_joined_and_developers_are_the_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"model": "m", "messages": [{"role": "developer", "content": parts}]}
    (message,) = parse_openai(body, "chat").spec.messages
    assert (message.role, message.content) == ("system", "ab")


def test_an_assistants_message_as_openai_gave_it_can_be_sent_back():
    turn = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "audio": None,
    }
    spec = parse_openai({"model": "m", "messages": [turn | {"name": "bob"}]}, "chat").spec
    assert spec.messages[0].content == "x"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0]"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "x", "mood": 1}, "messages[0].mood"),
        ("hi", "messages[0]"),
    ],
)
def test_a_bad_message_is_refused_by_its_place(message, field):
    assert refusal({"model": "m", "messages": [message]}, "chat").field == field


@pytest.mark.parametrize("messages", [None, [], "x", {}])
def test_messages_are_required(messages):
    error = refusal({"model": "m", "messages": messages}, "chat")
    assert error.field == "messages"
    assert "non-empty array" in error.message


def test_both_names_of_the_output_limit_are_known_and_each_is_named_in_its_refusal():
    assert parse_openai(CHAT | {"max_tokens": 5}, "chat").spec.max_output_tokens == 5
    assert parse_openai(CHAT | {"max_completion_tokens": 6}, "chat").spec.max_output_tokens == 6
    assert (
        parse_openai(CHAT | {"max_tokens": 6, "max_completion_tokens": 6}, "chat").spec.max_output_tokens == 6
    )
    assert refusal(CHAT | {"max_tokens": 5, "max_completion_tokens": 6}, "chat").field == "max_tokens"
    assert refusal(CHAT | {"max_tokens": 0}, "chat").field == "max_tokens"
    assert refusal(CHAT | {"max_completion_tokens": "6"}, "chat").field == "max_completion_tokens"


def test_logprobs_follow_each_faces_own_rules():
    assert parse_openai(CHAT | {"logprobs": True}, "chat").spec.logprobs == 0
    assert parse_openai(CHAT | {"logprobs": True, "top_logprobs": 5}, "chat").spec.logprobs == 5
    assert parse_openai(CHAT | {"logprobs": False}, "chat").spec.logprobs is None
    assert parse_openai(TEXT | {"logprobs": 5}, "completions").spec.logprobs == 5
    assert refusal(CHAT | {"top_logprobs": 5}, "chat").field == "top_logprobs"
    assert refusal(CHAT | {"logprobs": True, "top_logprobs": 21}, "chat").field == "top_logprobs"
    assert refusal(CHAT | {"logprobs": 5}, "chat").field == "logprobs"
    assert refusal(TEXT | {"logprobs": True}, "completions").field == "logprobs"


@pytest.mark.parametrize(
    "name", ["user", "metadata", "store", "service_tier", "parallel_tool_calls", "tool_choice"]
)
def test_a_field_that_changes_nothing_is_ignored(name):
    parse_openai(CHAT | {name: "anything"}, "chat")


@pytest.mark.parametrize(
    ("name", "neutral", "changing"),
    [
        ("presence_penalty", 0, 1),
        ("frequency_penalty", 0.0, 0.1),
        ("repetition_penalty", 1, 1.2),
        ("logit_bias", {}, {"1": 5}),
        ("min_tokens", 0, 1),
        ("best_of", 1, 2),
        ("echo", False, True),
        ("suffix", "", "end"),
        ("tools", [], [{"type": "function"}]),
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("modalities", ["text"], ["audio"]),
        ("skip_special_tokens", True, False),
        ("stop_token_ids", [], [7]),
        ("include_stop_str_in_output", False, True),
    ],
)
def test_a_field_that_would_change_the_output_is_refused_unless_neutral(name, neutral, changing):
    for face, body in (("chat", CHAT), ("completions", TEXT)):
        parse_openai(body | {name: neutral}, face)
        error = refusal(body | {name: changing}, face)
        assert error.field == name
        assert "not supported yet" in error.message


@pytest.mark.parametrize("name", ["flavour", "maxOutputTokens", "reasoning_effort", "guided_json"])
def test_an_unknown_field_is_refused_by_name(name):
    assert refusal(CHAT | {name: 1}, "chat").field == name


def test_each_face_refuses_the_others_input():
    assert refusal(CHAT | {"prompt": "x"}, "chat").field == "prompt"
    assert refusal(TEXT | {"messages": []}, "completions").field == "messages"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"temperature": 9}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ""}, "stop[0]"),
        ({"n": 0}, "n"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_bad_values_are_refused_under_openais_names(change, field):
    assert refusal(CHAT | change, "chat").field == field


@pytest.mark.parametrize("data", [None, [], "x"])
def test_a_body_that_is_no_object_is_refused(data):
    assert refusal(data, "chat").field == "body"
