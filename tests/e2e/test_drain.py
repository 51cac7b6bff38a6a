"""SIGTERM to each service in turn under load: nobody is cut off without a word, and no row is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
from collections import Counter, defaultdict

import aiohttp
import pytest

from tests.chaos import journal
from tests.chaos.clients import GONE, Crowd
from tests.chaos.verdict import judge
from tests.chaos.wire import Gateway, Wire
from tests.e2e.conftest import StackOptions, running
from tokenloom.up.probes import GrpcProbe, Health, NatsProbe

_SETTINGS = {
    "TOKENLOOM_DRAIN_GRACE_S": "2",
    "TOKENLOOM_LEASE_S": "5",
    "TOKENLOOM_RESUBMIT_TIMEOUT_S": "30",
    "TOKENLOOM_KV_BYTES": str(256 << 20),
}
_OPTIONS = StackOptions(gateways=2, workers=2, dtype="bfloat16", env=_SETTINGS)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.parametrize("stack", [_OPTIONS], indirect=True),
]
_CALLERS = 8
# Some end within the grace, the longest ones outlast it.
_LENGTHS = (8, 24, 200)
# A connection that was made, or lost, before anything was accepted.
_NO_ANSWER = {"ClientConnectorError", "ServerDisconnectedError", "ClientOSError", "gRPC UNAVAILABLE"}
_MAY_REFUSE = {
    "usage": set(),
    "registry": set(),
    "nats": {"IDEMPOTENCY_UNAVAILABLE"},
    "worker": {"DRAINING", "NO_CAPACITY"},
    "scheduler": {"DRAINING", "NO_CAPACITY", *GONE},
    "gateway": {"DRAINING"},
}
# Of these what outlasts the grace, and may not go on elsewhere, ends as incomplete.
_MAY_CUT = {"worker", "scheduler", "gateway"}


@pytest.fixture
async def wires(stack):
    gateways = zip(stack.http_urls, stack.grpc_targets, strict=True)
    wires = [Wire(Gateway(http, grpc, stack.api_key)) for http, grpc in gateways]
    yield wires
    for wire in wires:
        await wire.close()


@pytest.mark.parametrize("kind", list(_MAY_REFUSE))
async def test_a_service_that_drains_under_load_loses_no_row_and_cuts_nobody_off(
    stack, wires, tmp_path, kind
):
    truth = journal.Journal(tmp_path / "journal.jsonl")
    crowd = Crowd(wires, truth, seed=len(kind), lengths=_LENGTHS)
    callers = await busy(crowd)
    others = pids(stack)
    name = await drained(stack, kind)
    del others[name]
    assert others.items() <= pids(stack).items()
    crowd.stop()
    await asyncio.wait_for(callers, 120)
    await truth.close()
    lines = journal.read(tmp_path / "journal.jsonl")
    verdict = judge(lines, await rows(stack, known(lines)), [])
    assert verdict.findings == []
    assert verdict.unresolved == 0
    assert verdict.finished >= _CALLERS
    assert f"{name} exited with code 0" in stack.log
    assert "drain timed out" not in stack.log
    assert set(crowd.refusals) <= _MAY_REFUSE[kind]
    if kind not in _MAY_CUT:
        assert verdict.reasons["incomplete"] == 0
    assert_nobody_was_cut_off(lines)
    assert_what_may_resume_went_on(lines)


async def test_ctrl_c_under_load_ends_everything_in_time_and_loses_no_row(stack, wires, tmp_path, models_dir):
    truth = journal.Journal(tmp_path / "journal.jsonl")
    callers = await busy(Crowd(wires, truth, seed=1, lengths=_LENGTHS))
    stack.process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(stack.process.wait, 60) == 0
    assert "killed" not in stack.log
    callers.cancel()
    await asyncio.wait({callers})
    await truth.close()
    lines = journal.read(tmp_path / "journal.jsonl")
    with running(models_dir, _OPTIONS, stack.data_dir) as again:
        verdict = judge(lines, await rows(again, known(lines)), [])
    assert verdict.findings == []
    assert (verdict.unresolved, verdict.finished > 0) == (0, True)


async def busy(crowd) -> asyncio.Task[None]:
    """Callers, most of whom are being streamed to."""
    callers = asyncio.create_task(crowd.run(_CALLERS))
    async with asyncio.timeout(60):
        while crowd.streaming < _CALLERS // 2:  # noqa: ASYNC110 - callers come and go
            await asyncio.sleep(0.05)
    return callers


def pids(stack) -> dict[str, int]:
    kinds = ("gateway", "scheduler", "worker", "usage", "registry", "nats")
    return {row["name"]: row["pid"] for kind in kinds for row in stack.services(kind)}


async def drained(stack, kind) -> str:
    """SIGTERM to the last service of a kind, until another process serves in its place."""
    victim = stack.services(kind)[-1]
    os.kill(victim["pid"], signal.SIGTERM)
    async with asyncio.timeout(90):
        while True:
            row = next(row for row in stack.services(kind) if row["name"] == victim["name"])
            if row["pid"] != victim["pid"] and await serves(row):
                break
            await asyncio.sleep(0.1)
        for url in stack.http_urls:
            while not await healthy(url):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
    return victim["name"]


async def serves(row) -> bool:
    target = row["target"]
    nats = row["service"] == "nats"
    probe = NatsProbe(int(target.rpartition(":")[2])) if nats else GrpcProbe(target)
    return await probe(3.0) is Health.SERVING


async def healthy(url) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
            return response.status == 200
    return False


def known(lines) -> set[int]:
    return {int(line["request_id"].removeprefix("gen-"), 16) for line in lines if line["kind"] == "accepted"}


async def rows(stack, request_ids) -> list[dict]:
    """The ledger's rows of these requests, once all are there and closed."""
    found: list[dict] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while len(found) < len(request_ids) or any(row["closed_us"] is None for row in found):
                await asyncio.sleep(0.2)
                found = [row for row in read_ledger(stack) if row["request_id"] in request_ids]
    return found


def read_ledger(stack) -> list[dict]:
    path = stack.data_dir / "state" / "usage" / "usage.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM ledger")]


def assert_nobody_was_cut_off(lines) -> None:
    """Who was accepted hears a last word: only before it, or when coming back, a connection may fail."""
    accepted, interrupted = set(), set()
    causes: Counter[str] = Counter()
    for line in lines:
        if line["kind"] == "accepted":
            accepted.add(line["call"])
        elif line["kind"] in {"cut", "left"}:
            interrupted.add(line["call"])
        elif line["kind"] == "broken":
            if line["call"] in accepted - interrupted and line["cause"] != "gRPC DRAINING":
                causes[line["cause"]] += 1
            elif line["call"] not in accepted:
                assert line["cause"] in _NO_ANSWER
            interrupted.add(line["call"])
    assert not causes


def assert_what_may_resume_went_on(lines) -> None:
    asked = {line["call"]: line for line in lines if line["kind"] == "asked"}
    ends = defaultdict(list)
    for line in lines:
        if line["kind"] in {"done", "failed", "gone"}:
            ends[line["call"]].append(line)
    for call, line in asked.items():
        if line["scenario"] == "resume" and ends[call]:
            (end,) = ends[call]
            assert end.get("finishReason") == "length", (line, end)
            assert end["outputTokens"] == line["body"]["maxOutputTokens"]
