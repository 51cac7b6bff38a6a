"""Lane values and protos say the same."""

import pytest

from kit.errors import ServiceError
from services.scheduler.adapters import lane_protos, protos
from services.scheduler.core.errors import MalformedResult
from services.scheduler.core.messages import (
    ChoiceEnded,
    FinishReason,
    Logprobs,
    NewSequence,
    Priority,
    RequestEnded,
    Sampling,
    State,
    StepPlan,
    TokenCommitted,
)
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.worker.v1 import worker_pb2


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_reasons_have_the_same_numbers(reason):
    assert inference_pb2.FinishReason.Name(reason) == f"FINISH_REASON_{reason.name}"


@pytest.mark.parametrize("state", State)
def test_states_have_the_same_numbers(state):
    assert inference_pb2.GenerationState.Name(state) == f"GENERATION_STATE_{state.name}"


@pytest.mark.parametrize("priority", Priority)
def test_priorities_have_the_same_numbers(priority):
    assert inference_pb2.Priority.Name(priority) == f"PRIORITY_{priority.name}"


def test_a_plan_is_written_whole():
    sampling = Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=-7, top_logprobs=0)
    sequence = NewSequence(1, 99, [5, 6, 7], 2, 1, [8, 9], 3, sampling)
    plan = StepPlan(4, 5, drop=[0], add=[sequence], slot=[1], token_count=[2], page_slot=[1], page=[9])
    message = protos.plan_message(plan).plan
    assert (message.epoch, message.step, list(message.drop), list(message.page)) == (4, 5, [0], [9])
    (added,) = message.add
    assert (list(added.token_ids), added.prompt_len, added.computed_len, added.choice) == ([5, 6, 7], 2, 1, 3)
    assert (added.sampling.seed, added.sampling.HasField("top_logprobs")) == (-7, True)


def test_logprobs_keep_their_rows_from_the_worker_to_the_gateway():
    message = worker_pb2.StepResult(epoch=1, step=1, slot=[4, 5, 6], token_id=[10, 11, 12])
    message.logprobs.row.extend([0, 2])
    message.logprobs.logprob.extend([-0.5, -1.5])
    message.logprobs.top_count.extend([1, 2])
    message.logprobs.top_token_id.extend([10, 12, 13])
    message.logprobs.top_logprob.extend([-0.5, -1.5, -2.5])
    result = protos.step_result(message)
    assert result.logprobs == {
        0: Logprobs(-0.5, ((10, -0.5),)),
        2: Logprobs(-1.5, ((12, -1.5), (13, -2.5))),
    }
    effects = [
        TokenCommitted(7, 0, row, token, result.logprobs.get(row))
        for row, token in enumerate(result.token_id)
    ]
    assert lane_protos.lane_step(effects).step.logprobs == message.logprobs


@pytest.mark.parametrize(
    "fields",
    [
        {"slot": [1, 2], "token_id": [7]},
        {"slot": [1], "token_id": [7], "logprobs": {"row": [0], "logprob": [-1.0]}},
        {"slot": [1], "token_id": [7], "logprobs": {"row": [1], "logprob": [-1.0], "top_count": [0]}},
        {"slot": [1], "token_id": [7], "logprobs": {"row": [0], "logprob": [-1.0], "top_count": [2]}},
    ],
)
def test_a_result_whose_columns_disagree_is_its_workers_fault_and_ends_nobody_else(fields):
    with pytest.raises(MalformedResult):
        protos.step_result(worker_pb2.StepResult(epoch=1, step=1, **fields))


def test_one_message_tells_a_gateway_tokens_then_ends():
    step = lane_protos.lane_step(
        [
            TokenCommitted(7, 0, 0, 11, None),
            ChoiceEnded(7, 0, FinishReason.ERROR, 1, "NAN_LOGITS"),
            RequestEnded(7, 3, 2, 0.25),
            TokenCommitted(8, 1, 5, 12, None),
        ]
    ).step
    assert (list(step.request_id), list(step.choice), list(step.index)) == ([7, 8], [0, 1], [0, 5])
    assert step.choice_end[0].error_reason == "NAN_LOGITS"
    assert (step.request_end[0].queue_us, step.request_end[0].cached_tokens) == (250_000, 2)
    assert not step.HasField("logprobs")


def test_a_deadline_becomes_an_instant_and_a_missing_one_stays_missing():
    submit = scheduler_pb2.Submit(request_id=1, prompt_token_ids=[1], n=1, deadline_us=2_500_000)
    assert lane_protos.request(submit, now=100.0).deadline == 102.5
    submit.ClearField("deadline_us")
    request = lane_protos.request(submit, now=100.0)
    assert (request.deadline, request.priority, request.sampling.top_logprobs) == (None, 2, None)


def test_an_unknown_enum_value_is_refused_by_field():
    with pytest.raises(ServiceError) as error:
        lane_protos.request(scheduler_pb2.Submit(priority=9), now=0.0)
    assert error.value.field == "priority"
    with pytest.raises(ServiceError) as error:
        lane_protos.verdict(scheduler_pb2.Settle())
    assert error.value.field == "finish_reason"
