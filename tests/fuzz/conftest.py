"""Generated input by the thousand: `make fuzz`; a short slice of it is part of the suite.

TOKENLOOM_FUZZ_SCALE multiplies the cases (1 in the suite), TOKENLOOM_FUZZ_SEED chooses them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.registry.importing import import_model
from tests.e2e.conftest import Stack, StackOptions, running
from tests.fuzz.bodies import MODEL
from tests.fuzz.runner import Fuzzer, Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent
_TINY = _HERE.parent / "data" / "engine" / "llama3-rope"
_SCALE = int(os.environ.get("TOKENLOOM_FUZZ_SCALE") or 1)
_SEED = int(os.environ.get("TOKENLOOM_FUZZ_SEED") or 1)
_SETTINGS = {"TOKENLOOM_WORKER_THREADS": "1", "TOKENLOOM_DEFAULT_MAX_OUTPUT_TOKENS": "4"}
_TEMPLATE = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}assistant:"
_tallies: dict[str, Tally] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time grows with the cases."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(180 * max(2, _SCALE)))


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzzer:
    """Runs checks on generated cases and tells how to repeat the ones that fail."""
    tally = _tallies[request.node.name] = Tally()
    return Fuzzer(request.node.name, tally, seed=_SEED, scale=_SCALE)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A platform with one tiny model: random weights, its own tokenizer."""
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-models-", dir="/tmp"))
    try:
        shutil.copytree(_TINY, directory / "source")
        (directory / "source" / "chat_template.jinja").write_text(_TEMPLATE)
        import_model(str(directory / "source"), MODEL, directory / "models", lambda _: None)
        with running(directory / "models", StackOptions(models=(MODEL,), env=_SETTINGS)) as platform:
            yield platform
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what ran."""
    if not _tallies:
        return
    terminalreporter.section("fuzz")
    for name, tally in _tallies.items():
        terminalreporter.write_line(f"{name:68} {tally.cases:6} cases  {tally.past:6} past validation")
    cases, past = (sum(getattr(tally, part) for tally in _tallies.values()) for part in ("cases", "past"))
    share = past / cases if cases else 0
    terminalreporter.write_line(f"{'all':68} {cases:6} cases  {past:6} past validation ({share:.0%})")
    terminalreporter.write_line(f"seed {_SEED}, scale {_SCALE}")
