"""Records: retention, the tenant's border and the owner's verdict."""

import pytest

from kit.errors import Code, ServiceError
from services.scheduler.core.messages import (
    ChoiceEnded,
    FinishReason,
    Logprobs,
    Output,
    RequestEnded,
    TokenCommitted,
)
from services.scheduler.core.records import Order, Records, Verdict


def order(request_id=1, tenant="acme", spec=b"spec"):
    return Order(request_id, tenant, "m@1", "tok", "rev", 5, spec, accepted_at=100.0, opened_time=1e9)


def generate(records, request_id=1, tokens=(11, 12, 13), choice=0):
    for index, token in enumerate(tokens):
        records.apply(TokenCommitted(request_id, choice, index, token, None), now=101.0 + index)


def close(records, request_id=1, kept=(3,), now=200.0):
    records.settle(request_id, Verdict(1, FinishReason.LENGTH, kept), now)


def reason(call):
    with pytest.raises(ServiceError) as error:
        call()
    return error.value.code, error.value.reason


def test_a_record_holds_tokens_ends_and_the_time_of_the_first_token():
    records = Records(600, 1 << 20)
    records.open(order(), (Output(),))
    generate(records)
    records.apply(ChoiceEnded(1, 0, FinishReason.LENGTH, 3, ""), now=104.0)
    records.apply(RequestEnded(1, 5, 0, 0.5), now=104.0)
    record = records.find(1, "acme")
    assert list(record.choices[0].token_ids) == [11, 12, 13]
    assert record.choices[0].finish_reason is FinishReason.LENGTH
    assert record.first_token_at == 101.0
    assert record.end is not None
    assert record.end.input_tokens == 5


def test_another_tenants_request_does_not_exist_before_or_after_it_expired():
    records = Records(600, 1 << 20)
    records.open(order(), (Output(),))
    assert reason(lambda: records.find(1, "rival")) == (Code.NOT_FOUND, "NOT_FOUND")
    close(records)
    records.expire(now=801.0)
    assert reason(lambda: records.find(1, "rival")) == (Code.NOT_FOUND, "NOT_FOUND")


def test_an_expired_result_is_said_to_be_expired_and_not_unknown():
    records = Records(600, 1 << 20)
    records.open(order(), (Output(),))
    close(records)
    records.expire(now=799.0)
    assert records.find(1, "acme").verdict is not None
    records.expire(now=800.0)
    assert reason(lambda: records.find(1, "acme")) == (Code.FAILED_PRECONDITION, "RESULT_EXPIRED")
    assert reason(lambda: records.find(2, "acme")) == (Code.NOT_FOUND, "NOT_FOUND")
    assert 1 in records


def test_an_unsettled_record_never_expires():
    records = Records(600, 0)
    records.open(order(), (Output(),))
    records.expire(now=1e9)
    assert records.find(1, "acme").verdict is None


def test_the_byte_cap_forgets_the_oldest_first():
    records = Records(600, 3000)
    for request_id in (1, 2, 3):
        records.open(order(request_id, spec=b"x" * 700), (Output(),))
        close(records, request_id, now=200.0 + request_id)
    assert reason(lambda: records.find(1, "acme"))[1] == "RESULT_EXPIRED"
    assert records.find(2, "acme").verdict is not None
    assert records.find(3, "acme").verdict is not None


def test_tokens_ids_and_logprobs_are_trimmed_together_to_what_the_owner_kept():
    records = Records(600, 1 << 20)
    records.open(order(), (Output(), Output()))
    for index in range(4):
        entry = Logprobs(-0.5, ((1, -0.5),))
        records.apply(TokenCommitted(1, 1, index, index, entry), now=101.0)
    generate(records)
    close(records, kept=(2, 3))
    choices = records.find(1, "acme").choices
    assert [len(choice.token_ids) for choice in choices] == [2, 3]
    assert len(choices[1].logprobs) == 3


def test_tokens_that_come_after_the_verdict_change_nothing():
    records = Records(600, 1 << 20)
    records.open(order(), (Output(),))
    generate(records, tokens=(11,))
    close(records, kept=(1,))
    records.apply(TokenCommitted(1, 0, 1, 99, None), now=300.0)
    assert list(records.find(1, "acme").choices[0].token_ids) == [11]
