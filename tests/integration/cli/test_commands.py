"""The command line as a user runs it, against a real small gateway."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from tests.integration.client.small_gateway import KEY, Running
from tokenloom.up.layout import environment


class Shell:
    """Runs `tokenloom` on a data directory."""

    def __init__(self, running: Running, data_dir) -> None:
        self.running, self.data_dir = running, data_dir

    async def start(self, *words: str, **env: str) -> asyncio.subprocess.Process:
        verb, *rest = words
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tokenloom.cli", verb, *rest),
            *("--data-dir", str(self.data_dir)),
            env={**environment(), **env},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *words: str, stdin: str = "", **env: str) -> tuple[int, str, str]:
        process = await self.start(*words, **env)
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 30)
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def shell(tmp_path, monkeypatch):
    for name in ("TOKENLOOM_HTTP_URL", "TOKENLOOM_GRPC_TARGET", "TOKENLOOM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    async with Running() as running:
        (tmp_path / "dev.env").write_text(
            f"TOKENLOOM_HTTP_URL={running.url}\nTOKENLOOM_GRPC_TARGET={running.target}\nTOKENLOOM_API_KEY={KEY}\n"
        )
        yield Shell(running, tmp_path)


async def test_generate_prints_the_text_alone_on_stdout(shell):
    code, out, err = await shell.run("generate", "hello", "--temperature", "0", "--max-tokens", "9")
    assert (code, out) == (0, "one two three\n")
    assert err.startswith("[stop; 5 in, 3 out; ")
    request = shell.running.gateway.requests[0]
    assert (request.model, request.prompt, request.temperature) == ("m", "hello", 0)
    assert request.max_output_tokens == 9
    assert not request.HasField("top_p")


async def test_generate_prints_tokens_as_they_come_and_ctrl_c_cancels(shell):
    process = await shell.start("generate", "endless")
    assert await asyncio.wait_for(process.stdout.readexactly(13), 20) == b"one two three"
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(shell.running.gateway.cancelled.wait(), 5)
    assert await process.wait() == 130
    assert b"Traceback" not in await process.stderr.read()


async def test_generate_names_its_generation_and_lets_it_resume(shell):
    shell.running.gateway.breaks = [1]
    code, out, _ = await shell.run("generate", "x", "--idempotency-key", "k", "--resume")
    assert (code, out) == (0, "one two three\n")
    request = shell.running.gateway.requests[0]
    assert (request.idempotency_key, request.resume) == ("k", True)
    assert list(shell.running.gateway.attaches[0].from_index) == [1]


async def test_attach_prints_a_generation_from_a_token_on(shell):
    code, out, err = await shell.run("attach", "key:k", "--from", "1")
    assert (code, out) == (0, "two three\n")
    assert err.startswith("[stop; ")
    assert (await shell.run("attach", "gen-2"))[::2] == (1, "Error: NOT_FOUND: there is no such generation\n")


async def test_chat_once_sends_a_conversation(shell):
    code, out, _ = await shell.run("chat", "hi", "--system", "be brief")
    assert (code, out) == (0, "one two three\n")
    talk = shell.running.gateway.requests[0].messages.messages
    assert [(turn.role, turn.content) for turn in talk] == [("system", "be brief"), ("user", "hi")]


async def test_chat_goes_on_until_the_input_ends_and_remembers(shell):
    code, out, _ = await shell.run("chat", stdin="first\nsecond\n")
    assert code == 0
    assert out.count("one two three\n") == 2
    talk = shell.running.gateway.requests[1].messages.messages
    assert [turn.content for turn in talk] == ["first", "one two three", "second"]


async def test_cancel_says_what_state_the_generation_was_in(shell):
    assert (await shell.run("cancel", "gen-1"))[:2] == (0, "running\n")


async def test_usage_prints_a_table_of_what_was_asked(shell):
    code, out, _ = await shell.run("usage", "--request-id", "gen-1", "--from", "2026-01-01T00:00:00Z")
    assert code == 0
    header, row = out.splitlines()[:2]
    assert header.split()[:3] == ["request", "model", "input"]
    assert row.split()[:3] == ["gen-1", "m@1", "5"]
    assert shell.running.gateway.queries == [{"requestId": "gen-1", "from": "2026-01-01T00:00:00Z"}]
    assert (await shell.run("usage", "--request-id", "gen-2"))[0::2] == (0, "no rows\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("cancel", "gen-2"), 1, "Error: NOT_FOUND: no such generation\n"),
        (("generate", "bad"), 1, "Error: INVALID_REQUEST: must not be empty [stop[0]]\n"),
        (("generate", "busy"), 1, "Error: QUEUE_FULL: the queue is full (try again in 1.5 s)\n"),
    ],
)
async def test_a_refusal_is_one_clear_line(shell, words, code, message):
    assert await shell.run(*words) == (code, "", message)


@pytest.mark.parametrize(
    "words", [("generate", "caf\udce9"), ("generate", "x", "--stop", "\udce9"), ("usage", "--from", "\udce9")]
)
async def test_bytes_that_are_no_text_are_one_clear_line(shell, words):
    code, out, err = await shell.run(*words, PYTHONUTF8="1")
    assert (code, out) == (1, "")
    assert err == "Error: there is text that utf-8 cannot express: surrogates not allowed\n"


@pytest.mark.parametrize(
    "words",
    [
        ("generate",),
        ("generate", "x", "--temperature", "9"),
        ("generate", "x", "--max-tokens", "0"),
        ("fly",),
    ],
)
async def test_a_wrong_command_line_exits_with_2(shell, words):
    code, out, err = await shell.run(*words)
    assert (code, out) == (2, "")
    assert "Error: " in err
    assert "Traceback" not in err


async def test_the_environment_wins_over_the_data_directory(shell):
    code, _, err = await shell.run("usage", TOKENLOOM_API_KEY="wrong")
    assert (code, err) == (1, "Error: INVALID_API_KEY: the key is not known\n")


async def test_without_a_platform_the_message_says_how_to_start_one(shell, tmp_path):
    (tmp_path / "dev.env").unlink()
    code, _, err = await shell.run("generate", "x")
    assert code == 1
    assert f"tokenloom up --data-dir {tmp_path}" in err
    assert err.count("\n") == 1


async def test_a_gateway_that_is_gone_is_one_clear_line(shell):
    for verb, words in {"generate": ("x",), "usage": ()}.items():
        code, _, err = await shell.run(
            verb, *words, TOKENLOOM_GRPC_TARGET="127.0.0.1:1", TOKENLOOM_HTTP_URL="http://127.0.0.1:1"
        )
        assert code == 1
        assert err.startswith("Error: ")
        assert err.count("\n") == 1


async def test_several_models_must_be_chosen_from(shell):
    shell.running.gateway.models = ["a", "b"]
    code, _, err = await shell.run("generate", "x")
    assert (code, err) == (1, "Error: choose one with --model; served: a, b\n")
    assert (await shell.run("generate", "x", "--model", "b"))[0] == 0


async def test_models_are_listed_and_shown_from_their_manifests(shell, tmp_path):
    directory = tmp_path / "models" / "tiny" / "0123456789ab"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(
        '{"version": "0123456789ab", "family": "llama", "context_length": 64, "tokenizer_version": "t",'
        ' "source": "s", "licence": "Apache-2.0", "files": {"a": {"bytes": 2000000, "sha256": "x"}}}'
    )
    for version, text in {"1": '{"version": ', "2": "[]", "3": '{"version": "3"}', "4": "\xff"}.items():
        (directory.parent / version).mkdir()
        (directory.parent / version / "manifest.json").write_text(text, encoding="latin-1")
    shell_list = await shell.run("models", "list")
    assert shell_list[:2] == (0, "tiny@0123456789ab  llama  context 64  2 MB\n")
    code, out, _ = await shell.run("models", "show", "tiny")
    assert code == 0
    assert "licence            Apache-2.0\n" in out
    assert (await shell.run("models", "show", "none"))[0] == 1
