"""Results that no sound worker sends."""

import math

import pytest

from services.scheduler.adapters import protos
from services.scheduler.core.errors import MalformedResult
from tokenloom.api.worker.v1 import worker_pb2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["logprob", "top_logprob"])
def test_a_log_probability_that_json_cannot_say_is_its_workers_fault(place, value):
    columns = {"row": [0], "logprob": [-1.0], "top_count": [1], "top_token_id": [3], "top_logprob": [-1.0]}
    logprobs = worker_pb2.LogprobColumns(**columns | {place: [value]})
    result = worker_pb2.StepResult(epoch=1, step=1, slot=[0], token_id=[3], logprobs=logprobs)
    with pytest.raises(MalformedResult):
        protos.step_result(result)
