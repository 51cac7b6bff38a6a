"""The supervisor keeps real processes running, and leaves none behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tokenloom.up.child import Spec
from tokenloom.up.console import Console
from tokenloom.up.keeper import Keeper
from tokenloom.up.layout import environment
from tokenloom.up.options import Policy, UpError
from tokenloom.up.probes import GrpcProbe

SERVICE = str(Path(__file__).with_name("service.py"))
EAGER = Policy(probe_s=0.05, answer_s=0.3, grace_s=5, backoff_s=0.05, backoff_max_s=0.2)


class Stage:
    """Makes keepers of small services whose diary and output a test can read."""

    def __init__(self, directory: Path, policy: Policy = EAGER) -> None:
        self.directory, self.policy = directory, policy
        self.output = io.StringIO()
        self.diary = directory / "diary"
        self.tasks: list[asyncio.Task[None]] = []
        self.keepers: list[Keeper] = []

    def keep(self, name: str = "thing", policy: Policy | None = None, **env: str) -> Keeper:
        target = f"unix:{self.directory}/{name}.sock"
        argv = (sys.executable, SERVICE, target, name, str(self.diary))
        spec = Spec(name, name, argv, GrpcProbe(target), {**environment(), **env}, target=target)
        keeper = Keeper(spec, Console(self.output), policy or self.policy, lambda: None)
        self.keepers.append(keeper)
        self.tasks.append(asyncio.create_task(keeper.run()))
        return keeper

    async def close(self) -> None:
        for keeper in self.keepers:
            await keeper.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def stage():
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp") as directory:
        stage = Stage(Path(directory))
        yield stage
        await stage.close()


async def serving_again(keeper: Keeper, before: int, within_s: float = 10) -> None:
    until = time.monotonic() + within_s
    while keeper.child is None or keeper.child.pid == before or not await answers(keeper):
        assert time.monotonic() < until, "not restarted"
        await asyncio.sleep(0.05)


async def answers(keeper: Keeper) -> bool:
    return (await keeper.spec.probe(0.3)).value == "serving"


def exists(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_killed_service_is_restarted_and_said_so(stage):
    keeper = stage.keep()
    await asyncio.wait_for(keeper.serving.wait(), 10)
    before = keeper.child.pid
    os.kill(before, signal.SIGKILL)
    await serving_again(keeper, before)
    assert "thing was killed by signal 9: restarting it in 0.1 s" in stage.output.getvalue()


async def test_a_hung_service_is_killed_and_restarted(stage):
    """Health says 200 while the engine hangs, elsewhere: here silence is what counts."""
    keeper = stage.keep(policy=replace(EAGER, hang_s=0.6))
    await asyncio.wait_for(keeper.serving.wait(), 10)
    before = keeper.child.pid
    os.kill(before, signal.SIGSTOP)
    await serving_again(keeper, before)
    assert not exists(before)
    assert "thing did not answer for 1 s: restarting it" in stage.output.getvalue()


async def test_a_busy_service_that_answers_is_left_alone(stage):
    policy = replace(EAGER, answer_s=1.0, hang_s=2.0)
    keeper = stage.keep(policy=policy)
    await asyncio.wait_for(keeper.serving.wait(), 10)
    before = keeper.child.pid
    await asyncio.sleep(1.5 * policy.hang_s)
    assert keeper.child.pid == before


async def test_a_wrong_configuration_is_reported_instead_of_retried(stage):
    keeper = stage.keep(FAIL="2")
    with pytest.raises(UpError, match="thing cannot start: it exited with code 2"):
        await asyncio.wait_for(stage.tasks[0], 10)
    assert not keeper.serving.is_set()


async def test_a_service_that_never_starts_is_given_up_after_a_few_tries(stage):
    stage.keep(FAIL="1")
    with pytest.raises(UpError, match="thing cannot start: it exited with code 1"):
        await asyncio.wait_for(stage.tasks[0], 20)
    assert stage.output.getvalue().count("restarting it in") == EAGER.start_attempts - 1


async def test_output_is_passed_on_line_by_line_with_its_name(stage):
    keeper = stage.keep()
    await asyncio.wait_for(keeper.serving.wait(), 10)
    assert "thing      | thing speaks\n" in stage.output.getvalue()
    assert "\x1b" not in stage.output.getvalue(), "colours are for terminals"


async def test_a_service_that_will_not_drain_is_killed_after_the_grace(stage, eventually):
    keeper = stage.keep(policy=Policy(grace_s=0.5), STUBBORN="1", GRANDCHILD="1")
    await asyncio.wait_for(keeper.serving.wait(), 10)
    pid, grandchild = keeper.child.pid, int(stage.diary.with_suffix(".grandchild").read_text())
    await keeper.stop()
    assert not exists(pid)
    await eventually(lambda: not exists(grandchild))  # killed with it, and nobody's to wait for
    assert "thing did not drain within" in stage.output.getvalue()


async def test_stopping_while_the_process_starts_leaves_none_behind(stage):
    keeper = stage.keep()
    await asyncio.sleep(0)
    await keeper.stop()
    await asyncio.wait_for(stage.tasks[0], 10)
    assert keeper.child is None or not exists(keeper.child.pid)


async def test_stopping_during_the_backoff_starts_nothing_more(stage):
    keeper = stage.keep(policy=Policy(backoff_s=30, backoff_max_s=30), FAIL="1")
    while "restarting it in 30.0 s" not in stage.output.getvalue():  # noqa: ASYNC110 - a process, not a task
        await asyncio.sleep(0.05)
    await keeper.stop()
    await asyncio.wait_for(stage.tasks[0], 5)


def test_children_die_with_a_supervisor_that_is_killed():
    script = textwrap.dedent(
        """
        import asyncio, sys
        from tokenloom.up.child import Child, Spec
        from tokenloom.up.console import Console

        async def main():
            spec = Spec("sleeper", "sleeper", ("sleep", "600"), None, {"PATH": "/usr/bin:/bin"})
            print((await Child.start(spec, Console(sys.stderr))).pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
        """
    )
    supervisor = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment())
    child = int(supervisor.stdout.readline())
    assert exists(child)
    supervisor.kill()
    supervisor.wait()
    until = time.monotonic() + 5
    while exists(child):
        assert time.monotonic() < until
        time.sleep(0.02)
