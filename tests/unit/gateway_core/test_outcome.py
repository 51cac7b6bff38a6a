from itertools import pairwise

import pytest

from kit.errors import Code
from services.gateway.core.outcome import FinishReason, Timings, close, error_of, request_reason

TIMES = Timings(received=100.0, first_token=100.25, ended=102.0, queue_s=0.125)


def closed(*reasons, outputs=(87,), inputs=5, cached=0, times=TIMES):
    return close(reasons, outputs, times, input_tokens=inputs, cached_tokens=cached)


def test_the_most_severe_reason_of_the_choices_is_the_requests():
    order = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.CANCELLED]
    order += [FinishReason.INCOMPLETE, FinishReason.ERROR]
    for milder, harder in pairwise(order):
        assert request_reason([harder, milder]) is harder


@pytest.mark.parametrize("reason", [r for r in FinishReason if r is not FinishReason.ERROR])
def test_every_ending_but_error_bills_input_and_output(reason):
    assert closed(reason).billable_tokens == 92


def test_a_failed_request_bills_nothing_and_still_says_what_it_counted():
    record = closed(FinishReason.ERROR)
    assert (record.billable_tokens, record.input_tokens, record.output_tokens) == (0, 5, 87)


def test_one_failed_choice_makes_the_whole_request_free():
    record = closed(FinishReason.STOP, FinishReason.ERROR, outputs=(10, 3))
    assert (record.finish_reason, record.output_tokens, record.billable_tokens) == (FinishReason.ERROR, 13, 0)


@pytest.mark.parametrize("reason", [FinishReason.DEADLINE, FinishReason.CANCELLED])
def test_a_request_that_ends_in_the_queue_bills_zero(reason):
    times = Timings(received=1.0, ended=2.0, queue_s=1.0)
    record = close([reason], [0], times, input_tokens=0, cached_tokens=3)
    assert (record.billable_tokens, record.input_tokens, record.cached_tokens) == (0, 0, 0)
    assert (record.queue_ms, record.ttft_ms, record.total_ms) == (1000.0, 0.0, 1000.0)


def test_the_prompt_is_billed_once_for_all_choices():
    record = closed(FinishReason.STOP, FinishReason.LENGTH, outputs=(10, 20), cached=4)
    assert (record.input_tokens, record.cached_tokens, record.output_tokens) == (5, 4, 30)
    assert record.billable_tokens == 35


def test_times_are_milliseconds_from_arrival():
    record = closed(FinishReason.STOP)
    assert (record.queue_ms, record.ttft_ms, record.total_ms) == (125.0, 250.0, 2000.0)


def test_json_words_are_lower_case():
    assert [reason.label for reason in FinishReason] == [
        "stop", "length", "deadline", "cancelled", "incomplete", "error"
    ]  # fmt: skip


def test_an_error_carries_the_schedulers_reason():
    assert (error_of("WORKER_LOST").code, error_of("WORKER_LOST").reason) == (Code.INTERNAL, "WORKER_LOST")
    assert error_of().reason == "INTERNAL"
