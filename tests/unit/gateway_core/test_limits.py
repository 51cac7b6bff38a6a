import pytest

from kit.errors import ServiceError
from services.gateway.core.limits import Priority, effective_priority, prepare
from services.gateway.core.openai_request import parse_openai
from services.gateway.core.validation import parse_generation
from tests.unit.gateway_core.toy import EOS, toy

CONTEXT = 64


def of_length(length, **fields):
    return parse_generation({"model": "toy", "promptTokenIds": [5] * length, **fields})


def refusal(spec):
    with pytest.raises(ServiceError) as caught:
        prepare(spec, toy(CONTEXT))
    return caught.value


def test_a_missing_output_limit_is_the_default():
    assert prepare(of_length(1), toy(8192)).max_output_tokens == 512
    assert prepare(of_length(1), toy(8192), 100).max_output_tokens == 100


def test_the_default_is_capped_by_the_context():
    assert prepare(of_length(60), toy(CONTEXT)).max_output_tokens == 4


def test_a_prompt_of_context_minus_one_leaves_one_output_token():
    prepared = prepare(of_length(CONTEXT - 1, maxOutputTokens=1), toy(CONTEXT))
    assert (len(prepared.prompt_token_ids), prepared.max_output_tokens) == (63, 1)
    assert prepare(of_length(CONTEXT - 1), toy(CONTEXT)).max_output_tokens == 1


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 5000])
def test_a_prompt_of_the_whole_context_is_refused_naming_what_is_allowed(length):
    error = refusal(of_length(length))
    assert (error.reason, error.field) == ("CONTEXT_TOO_LONG", "promptTokenIds")
    assert "at most 63" in error.message


def test_output_that_was_asked_for_and_does_not_fit_is_refused_naming_what_is_allowed():
    assert prepare(of_length(60, maxOutputTokens=4), toy(CONTEXT)).max_output_tokens == 4
    error = refusal(of_length(60, maxOutputTokens=5))
    assert (error.reason, error.field) == ("CONTEXT_TOO_LONG", "maxOutputTokens")
    assert "at most 4" in error.message


def test_a_text_prompt_is_measured_in_tokens():
    error = refusal(parse_generation({"model": "toy", "prompt": "xyz" * 60}))
    assert (error.reason, error.field) == ("CONTEXT_TOO_LONG", "prompt")


def test_the_openai_caller_reads_his_own_names():
    body = {"model": "toy", "prompt": [5] * 60}
    assert refusal(parse_openai(body | {"max_tokens": 9}, "completions").spec).field == "max_tokens"
    assert refusal(parse_openai(body | {"prompt": [5] * 99}, "completions").spec).field == "prompt"
    turns = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 99}
    assert refusal(parse_openai(turns, "chat").spec).field == "max_completion_tokens"


def test_a_token_id_beyond_the_vocabulary_is_refused_by_its_place():
    size = len(toy().vocabulary)
    prepare(parse_generation({"model": "toy", "promptTokenIds": [size - 1]}), toy(CONTEXT))
    error = refusal(parse_generation({"model": "toy", "promptTokenIds": [1, size, 2]}))
    assert (error.reason, error.field) == ("INVALID_REQUEST", "promptTokenIds[1]")
    assert f"0 to {size - 1}" in error.message


def test_eos_stops_unless_it_is_ignored():
    assert prepare(of_length(1), toy(CONTEXT)).stop_token_ids == (EOS,)
    assert prepare(of_length(1, ignoreEos=True), toy(CONTEXT)).stop_token_ids == ()


@pytest.mark.parametrize(
    ("plan", "asked", "runs"),
    [
        (Priority.STANDARD, None, Priority.STANDARD),
        (Priority.STANDARD, "batch", Priority.BATCH),
        (Priority.STANDARD, "interactive", Priority.STANDARD),
        (Priority.INTERACTIVE, "interactive", Priority.INTERACTIVE),
        (Priority.BATCH, "standard", Priority.BATCH),
    ],
)
def test_a_request_may_only_lower_its_plans_class(plan, asked, runs):
    assert effective_priority(plan, asked) is runs
