"""Seats of a shared volume, taken by real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import seat

# Stands for a service: a package `services.echo` that says its seat and stays until told to go.
ECHO = """
import os, sys
print(os.environ["TOKENLOOM_ECHO_ID"], os.environ["TOKENLOOM_STATE_DIR"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sit(tmp_path):
    package = tmp_path / "code" / "services" / "echo"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__main__.py").write_text(ECHO)
    path = os.pathsep.join((str(package.parents[1]), str(Path(seat.__file__).parents[1])))
    sitting = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-m", "kit.seat", "echo"],
            env={"PYTHONPATH": path, "TOKENLOOM_STATE_DIR": str(tmp_path / "room")},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        sitting.append(process)
        name, directory = process.stdout.readline().split()
        return process, name, directory

    yield start
    for process in sitting:
        process.kill()
        process.communicate()


def test_replicas_of_one_volume_share_neither_name_nor_state(sit, tmp_path):
    seats = [sit()[1:] for _ in range(3)]
    assert seats == [(f"echo-{n}", str(tmp_path / "room" / f"echo-{n}")) for n in (1, 2, 3)]


def test_a_successor_inherits_the_state_of_one_that_was_killed(sit):
    first, name, directory = sit()
    sit()
    Path(directory, "outbox").write_text("not published yet")
    first.kill()
    first.wait()
    _, heir, inherited = sit()
    assert heir == name
    assert Path(inherited, "outbox").read_text() == "not published yet"


def test_no_free_seat_is_an_error_and_not_a_shared_one(tmp_path, monkeypatch):
    monkeypatch.setattr(seat, "SEATS", 1)
    seat.take(tmp_path, "echo")
    with pytest.raises(OSError, match="seats"):
        seat.take(tmp_path, "echo")


def test_without_a_shared_directory_it_says_how_it_is_used(monkeypatch):
    monkeypatch.delenv("TOKENLOOM_STATE_DIR", raising=False)
    command = [sys.executable, "-m", "kit.seat", "echo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "TOKENLOOM_STATE_DIR" in done.stderr
