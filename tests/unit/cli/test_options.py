"""From the command line to the SDK."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tokenloom.cli import main, shared
from tokenloom.cli.streaming import generate_options
from tokenloom.up import nats


def test_what_was_not_given_stays_out():
    given = {"max_tokens": None, "temperature": 0.0, "stop": (), "deadline": 3.0, "seed": None}
    assert generate_options(given) == {"temperature": 0.0, "stop": ()}


def test_max_tokens_is_the_contract_s_max_output_tokens():
    assert generate_options({"max_tokens": 5}) == {"max_output_tokens": 5}


@pytest.mark.parametrize("verb", ["up", "demo", "generate", "chat", "attach", "cancel", "usage", "models"])
def test_every_verb_explains_itself(verb):
    result = CliRunner().invoke(main, [verb, "--help"])
    assert result.exit_code == 0
    assert f"Usage: main {verb}" in result.output


def test_the_help_lists_every_verb_without_importing_the_platform():
    result = CliRunner().invoke(main, ["--help"])
    assert [line.split()[0] for line in result.output.split("Commands:\n")[1].splitlines()] == [
        "up", "demo", "generate", "chat", "attach", "cancel", "usage", "models", "certs",
    ]  # fmt: skip


def test_access_is_read_from_the_file_that_up_writes(tmp_path, monkeypatch):
    for name in ("HTTP_URL", "GRPC_TARGET", "API_KEY", "CA"):
        monkeypatch.delenv(f"TOKENLOOM_{name}", raising=False)
    (tmp_path / "dev.env").write_text(
        "TOKENLOOM_HTTP_URL=http://h\nTOKENLOOM_GRPC_TARGET=g\nTOKENLOOM_API_KEY=k=1\nTOKENLOOM_HTTP_URL_2=x\n"
    )
    assert shared.find_access(tmp_path) == shared.Access("http://h", "g", "k=1")
    with (tmp_path / "dev.env").open("a") as file:
        file.write("TOKENLOOM_CA=/certs/ca.pem\n")
    assert shared.find_access(tmp_path).ca == "/certs/ca.pem"


def test_an_authority_that_cannot_be_read_is_said_in_one_line(tmp_path):
    env = {
        "TOKENLOOM_HTTP_URL": "https://127.0.0.1:1",
        "TOKENLOOM_GRPC_TARGET": "127.0.0.1:1",
        "TOKENLOOM_API_KEY": "k",
        "TOKENLOOM_CA": str(tmp_path / "nowhere.pem"),
    }
    result = CliRunner().invoke(main, ["generate", "hello"], env=env)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: TOKENLOOM_CA: {tmp_path}/nowhere.pem cannot be read")
    result = CliRunner().invoke(main, ["usage"], env=env)
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)


def test_only_gateway_and_scheduler_may_publish_usage():
    allowed = {
        user for user in nats.USERS if "usage.v1.>" in nats.permissions(user)["publish"].get("allow", [])
    }
    assert allowed == {"gateway", "scheduler"}
