"""The step log: fencing, order and idempotency."""

import pytest

from services.worker.core.errors import FencedError, GapError
from services.worker.core.steps import Execute, Replay, StepLog


def ran(*plans: tuple[int, int]) -> StepLog[str]:
    log: StepLog[str] = StepLog()
    for epoch, step in plans:
        assert isinstance(log.admit(epoch, step), Execute)
        log.record(epoch, step, f"{epoch}.{step}")
    return log


def test_first_plan_of_an_epoch_resets_the_engine_and_later_ones_do_not():
    log = ran((5, 1))
    assert log.admit(5, 2) == Execute(reset=False)
    assert log.admit(6, 1) == Execute(reset=True)


def test_a_lower_epoch_is_fenced():
    log = ran((5, 1), (7, 1))
    with pytest.raises(FencedError) as error:
        log.admit(5, 2)
    assert error.value.reason == "EPOCH_FENCED"
    assert error.value.code.name == "FAILED_PRECONDITION"


def test_a_retried_step_finds_its_result_instead_of_no_batch():
    log = ran((1, 1), (1, 2), (1, 3))
    assert log.admit(1, 3) == Replay("1.3")
    assert log.admit(1, 2) == Replay("1.2")
    assert log.admit(1, 4) == Execute(reset=False)


def test_a_repeat_older_than_the_last_two_is_refused():
    with pytest.raises(GapError):
        ran((1, 1), (1, 2), (1, 3)).admit(1, 1)


@pytest.mark.parametrize("step", [0, 4, 9])
def test_a_gap_is_refused_and_changes_nothing(step):
    log = ran((1, 1), (1, 2))
    with pytest.raises(GapError):
        log.admit(1, step)
    assert log.admit(1, 3) == Execute(reset=False)


def test_a_new_epoch_starts_at_step_one():
    log = ran((1, 1), (1, 2))
    with pytest.raises(GapError):
        log.admit(2, 3)
    assert log.epoch == 1


def test_results_of_an_older_epoch_are_never_replayed():
    log = ran((1, 1), (1, 2), (2, 1))
    assert log.admit(2, 2) == Execute(reset=False)
    assert log.admit(2, 1) == Replay("2.1")
