import os
import subprocess
import sys

import pytest

from kit.config import ConfigError, ServiceConfig, load


class ExampleConfig(ServiceConfig):
    example_listen: str
    example_depth: int = 1


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("TOKENLOOM_NATS_URL", "nats://127.0.0.1:4222")
    monkeypatch.setenv("TOKENLOOM_STATE_DIR", "/tmp/state")
    monkeypatch.setenv("TOKENLOOM_EXAMPLE_LISTEN", "127.0.0.1:0")
    return monkeypatch


def test_a_missing_variable_is_named(environment):
    environment.delenv("TOKENLOOM_EXAMPLE_LISTEN")
    with pytest.raises(ConfigError, match="TOKENLOOM_EXAMPLE_LISTEN"):
        load(ExampleConfig)


def test_a_bad_value_is_refused_by_name_and_never_swallowed(environment):
    environment.setenv("TOKENLOOM_EXAMPLE_DEPTH", "deep")
    environment.setenv("TOKENLOOM_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError) as refusal:
        load(ExampleConfig)
    assert "TOKENLOOM_EXAMPLE_DEPTH" in refusal.value.message
    assert "TOKENLOOM_LOG_FORMAT" in refusal.value.message
    assert "'console' or 'json'" in refusal.value.message


def test_a_loaded_configuration_is_frozen(environment):
    config = load(ExampleConfig)
    with pytest.raises(ValueError, match="frozen"):
        config.example_depth = 2


@pytest.mark.parametrize("fmt", ["console", "json"])
def test_a_traceback_in_the_log_holds_no_local_variables(fmt):
    script = f"""
from kit import log
log.configure("example", fmt={fmt!r})
prompt = "attack at " + "dawn"
try:
    len(3)
except TypeError:
    log.get("part").exception("went wrong", request_id=7)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=True
    )
    assert "TypeError" in result.stderr
    assert "went wrong" in result.stderr
    assert "attack at dawn" not in result.stderr
    assert result.stdout == ""
