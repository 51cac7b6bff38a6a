"""The line that a failure prints repeats it."""

import re

import pytest
from hypothesis import strategies as st

from tests.fuzz.runner import Fuzzer, Tally


def run(seed: int, scale: int) -> tuple[int, str]:
    """The first case that fails, and what the failure says besides."""
    failing: list[int] = []

    def check(case: int) -> None:
        if case % 97 == 3:
            failing.append(case)
            pytest.fail("caught")

    with pytest.raises(pytest.fail.Exception) as failure:
        Fuzzer("test_b", Tally(), seed=seed, scale=scale)(st.integers(0, 10**9), check, cases=20)
    return failing[0], "\n".join(failure.value.__notes__)


def test_a_failure_is_repeated_by_the_line_that_it_prints() -> None:
    case, said = run(seed=5, scale=200)
    line = re.search(r"make fuzz FUZZ_SEED=(\d+) FUZZ_SCALE=1 ARGS=\"tests/fuzz -k test_b\"", said)
    assert line is not None
    again, _ = run(seed=int(line[1]), scale=1)
    assert again == case
