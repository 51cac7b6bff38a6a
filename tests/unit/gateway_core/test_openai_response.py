import json

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from kit.errors import Code, ServiceError, invalid
from services.gateway.core.choice import Alternative, NewToken
from services.gateway.core.openai_request import parse_openai
from services.gateway.core.openai_response import OpenAIResponse, error_body, failure
from services.gateway.core.outcome import FinishReason, Timings, close
from tests.unit.gateway_core.toy import ReadChoice, characters

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
ID = "gen-0000000000000abc"


def response(face, **fields):
    vocabulary, _ = characters("")
    request = parse_openai((CHAT if face == "chat" else TEXT) | fields, face)
    return OpenAIResponse(request, ID, 1_700_000_000, "m@1", vocabulary)


def written(text, reason=None, *, logprobs=False):
    """A choice that wrote `text`, one token a byte."""
    vocabulary, ids = characters(text)
    choice = ReadChoice(vocabulary)
    for number, token_id in enumerate(ids):
        top = (Alternative(token_id, -0.5), Alternative(ids[0], -1.0))
        choice.feed([NewToken(token_id, -0.5 - number, top) if logprobs else NewToken(token_id)])
    if reason is not None:
        choice.end(reason)
    return choice


def closed(reason=FinishReason.STOP):
    return close([reason], [3], Timings(0.0, 1.0), input_tokens=7, cached_tokens=4)


def test_a_whole_chat_answer_is_one_the_official_client_reads():
    body = response("chat").whole([written("yes", FinishReason.STOP)], closed())
    answer = ChatCompletion.model_validate(body)
    assert (answer.id, answer.object, answer.model) == (ID, "chat.completion", "m@1")
    assert answer.choices[0].message.content == "yes"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        7,
        3,
        10,
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_a_whole_completion_is_one_the_official_client_reads():
    body = response("completions").whole([written("yes", FinishReason.LENGTH)], closed())
    answer = Completion.model_validate(body)
    assert (answer.object, answer.choices[0].text, answer.choices[0].finish_reason) == (
        "text_completion",
        "yes",
        "length",
    )


def test_a_chat_stream_opens_each_choice_with_its_role():
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in response("chat", n=2).opening()]
    assert [(c.choices[0].index, c.choices[0].delta.role) for c in chunks] == [
        (0, "assistant"),
        (1, "assistant"),
    ]
    assert response("completions").opening() == []


def test_a_chunk_carries_a_piece_and_in_the_end_the_reason():
    choice = written("ab")
    first = ChatCompletionChunk.model_validate(response("chat").chunk(choice.take()))
    assert (first.choices[0].delta.content, first.choices[0].finish_reason) == ("ab", None)
    choice.end(FinishReason.LENGTH)
    last = response("chat").chunk(choice.take())
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["x_tokenloom_finish_reason"] == "length"


def test_usage_comes_in_a_last_chunk_without_choices_and_is_null_before():
    asked = response("chat", stream=True, stream_options={"include_usage": True})
    assert asked.chunk(written("a").take())["usage"] is None
    last = ChatCompletionChunk.model_validate(asked.usage_chunk(closed()))
    assert (last.choices, last.usage.total_tokens) == ([], 10)
    assert "usage" not in response("chat").chunk(written("a").take())


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.DEADLINE, "length"),
        (FinishReason.CANCELLED, None),
        (FinishReason.INCOMPLETE, None),
        (FinishReason.ERROR, None),
    ],
)
def test_each_finish_reason_has_openais_word_and_always_our_own(reason, word):
    choice = response("completions").whole([written("a", reason)], closed(reason))["choices"][0]
    assert choice["finish_reason"] == word
    assert choice["x_tokenloom_finish_reason"] == reason.label


@pytest.mark.parametrize(
    ("reason", "code", "ours"),
    [
        (FinishReason.CANCELLED, Code.CANCELLED, "CANCELLED"),
        (FinishReason.INCOMPLETE, Code.UNAVAILABLE, "INCOMPLETE"),
        (FinishReason.ERROR, Code.INTERNAL, "NAN_LOGITS"),
    ],
)
def test_an_ending_without_a_word_is_an_error(reason, code, ours):
    error = failure(closed(reason), "NAN_LOGITS")
    assert (error.code, error.reason) == (code, ours)


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH, FinishReason.DEADLINE])
def test_an_ending_with_a_word_is_no_error(reason):
    assert failure(closed(reason)) is None


def test_chat_logprobs_name_tokens_and_their_bytes():
    choice = written("é", FinishReason.STOP, logprobs=True)
    body = response("chat", logprobs=True, top_logprobs=2).whole([choice], closed())
    first = ChatCompletion.model_validate(body).choices[0].logprobs.content[0]
    assert (first.token, first.bytes, first.logprob) == ("\ufffd", [0xC3], -0.5)
    assert [top.logprob for top in first.top_logprobs] == [-0.5, -1.0]


def test_completion_logprobs_are_parallel_arrays_with_offsets_into_the_text():
    choice = written("ab", logprobs=True)
    face = response("completions", logprobs=2)
    first = face.chunk(choice.take())["choices"][0]["logprobs"]
    assert (first["tokens"], first["token_logprobs"], first["text_offset"]) == (
        ["a", "b"],
        [-0.5, -1.5],
        [0, 1],
    )
    assert first["top_logprobs"] == [{"a": -0.5}, {"b": -0.5, "a": -1.0}]
    _, ids = characters("c")
    choice.feed([NewToken(ids[0], -2.0)])
    second = face.chunk(choice.take())["choices"][0]["logprobs"]
    assert (second["text_offset"], second["top_logprobs"]) == ([2], [{"c": -2.0}])


def test_no_logprobs_unless_asked_for():
    assert response("chat").chunk(written("a", logprobs=True).take())["choices"][0]["logprobs"] is None


def test_an_impossible_token_is_still_json():
    vocabulary, ids = characters("a")
    choice = ReadChoice(vocabulary)
    choice.feed([NewToken(ids[0], float("-inf"))])
    body = response("completions", logprobs=0).chunk(choice.take())
    assert "-9999.0" in json.dumps(body, allow_nan=False)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (invalid("temperature", "x"), "invalid_request_error", "invalid_value"),
        (invalid("prompt", "x", "CONTEXT_TOO_LONG"), "invalid_request_error", "context_length_exceeded"),
        (
            ServiceError(Code.UNAUTHENTICATED, "INVALID_API_KEY", "x"),
            "invalid_request_error",
            "invalid_api_key",
        ),
        (ServiceError(Code.NOT_FOUND, "NOT_FOUND", "x", "model"), "invalid_request_error", "model_not_found"),
        (ServiceError(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", "x"), "rate_limit_error", "queue_full"),
        (
            ServiceError(Code.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED", "x"),
            "insufficient_quota",
            "insufficient_quota",
        ),
        (ServiceError(Code.UNAVAILABLE, "NO_CAPACITY", "x"), "server_error", "no_capacity"),
    ],
)
def test_an_error_has_openais_type_and_code_and_our_reason(error, kind, code):
    body = error_body(error)["error"]
    assert (body["type"], body["code"], body["reason"]) == (kind, code, error.reason)
    assert body["param"] == (error.field or None)


def test_an_error_tells_when_to_retry_and_how_an_accepted_request_ended():
    error = ServiceError(Code.UNAVAILABLE, "INCOMPLETE", "x", retry_after_ms=250)
    body = error_body(error, FinishReason.INCOMPLETE)["error"]
    assert (body["retry_after_ms"], body["x_tokenloom_finish_reason"]) == (250, "incomplete")
    assert "retry_after_ms" not in error_body(invalid("n", "x"))["error"]
