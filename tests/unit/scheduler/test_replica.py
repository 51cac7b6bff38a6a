"""What the shell knows of one worker's plans."""

import pytest

from services.scheduler.adapters.replica import Replica, Sent
from services.scheduler.core.messages import Capacity, Worker
from tokenloom.api.worker.v1 import worker_pb2

CAPACITY = Capacity(
    page_size=4, page_count=8, slot_count=2, max_step_tokens=8, context_length=32, vocab_size=50
)


@pytest.fixture
async def replica():
    return Replica(Worker("w0", "m@1", "rev", CAPACITY, epoch=3), step_timeout_s=10.0)


def send(replica, step, at):
    replica.send(worker_pb2.RunRequest(plan=worker_pb2.StepPlan(epoch=3, step=step)), Sent(at, 0.0, 1))


async def test_a_plan_behind_another_has_its_own_time_from_when_its_turn_comes(replica):
    send(replica, 1, at=0.0)
    send(replica, 2, at=0.5)
    assert not replica.overdue(10.0)
    assert replica.overdue(10.1)
    assert replica.received(worker_pb2.StepResult(epoch=3, step=1), 9.0) is not None
    assert not replica.overdue(18.0)
    assert replica.overdue(19.1)


async def test_a_result_that_was_not_asked_for_gives_no_time(replica):
    send(replica, 1, at=0.0)
    for stranger in (worker_pb2.StepResult(epoch=2, step=1), worker_pb2.StepResult(epoch=3, step=7)):
        assert replica.received(stranger, 9.0) is None
    assert replica.overdue(10.1)
