"""`make chaos`: break a platform for minutes, then compare what callers were told with what is billed."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from tests.chaos import journal
from tests.chaos.clients import PROMPTS, Crowd
from tests.chaos.monkey import Monkey
from tests.chaos.stack import LEASE_S, Stack
from tests.chaos.verdict import Verdict, judge
from tests.chaos.wire import Wire
from tests.models import SMOLLM2, imported
from tests.support import leaks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenloom.api.scheduler.v1 import scheduler_pb2

_CALLERS = 14
_HEALTHY_S = 30.0
# Fewer ids than these chance may write down too.
_CANARY_TOKENS = 16
_CALLERS_END_S = 150.0
# Idle workers are probed: such a step holds a page for as long as it takes.
_REST_S = 10.0
# A row is final one lease and 30 s after it closed; an open one counts as unresolved as long after.
_ROWS_END_S = LEASE_S + 30.0 + 30.0


async def run(directory: Path, models_dir: Path, minutes: float, seed: int) -> dict[str, Any]:
    """One run; returns the report."""
    truth = journal.Journal(directory / "journal.jsonl")
    async with Stack(directory, models_dir) as stack:
        wires = [Wire(gateway) for gateway in stack.gateways]
        crowd = Crowd(wires, truth, seed)
        monkey = Monkey(stack, crowd, seed)
        callers = asyncio.create_task(crowd.run(_CALLERS))
        await monkey.run(minutes * 60)
        healthy_s = await _until_healthy(stack)
        crowd.stop()
        findings = [] if await _ended(callers) else ["callers still waited for an end"]
        rows = await _rows(stack)
        findings += await _at_rest(stack)
        findings += await _written_down(stack, crowd)
        await asyncio.gather(*(wire.close() for wire in wires))
    await truth.close()
    verdict = judge(journal.read(directory / "journal.jsonl"), rows, monkey.faults)
    verdict.findings += findings
    if healthy_s is None:
        verdict.findings.append(f"not every service was healthy {_HEALTHY_S:.0f} s after the last fault")
    if stack.exit_code != 0:
        verdict.findings.append(f"the platform ended with exit code {stack.exit_code}")
    return _report(minutes, seed, monkey, crowd, verdict, healthy_s)


async def _until_healthy(stack: Stack) -> float | None:
    started = time.monotonic()
    while time.monotonic() - started < _HEALTHY_S:
        if not await stack.unhealthy():
            return round(time.monotonic() - started, 1)
        await asyncio.sleep(0.25)
    return None


async def _ended(callers: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait({callers}, timeout=_CALLERS_END_S)
    if not done:
        callers.cancel()
        return False
    callers.result()
    return True


async def _rows(stack: Stack) -> list[dict[str, Any]]:
    """The ledger once nothing in it is open any more, or could be."""
    until = time.monotonic() + _ROWS_END_S
    connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""))
    try:
        while await connection.fetchval("SELECT count(*) FROM ledger WHERE closed_us IS NULL"):
            if time.monotonic() > until:
                break
            await asyncio.sleep(1.0)
        return [dict(row) for row in await connection.fetch("SELECT * FROM ledger")]
    finally:
        await connection.close()


async def _at_rest(stack: Stack) -> list[str]:
    until = time.monotonic() + _REST_S
    while True:
        lanes = await stack.lanes()
        if not any(map(_held, lanes)) or time.monotonic() > until:
            break
        await asyncio.sleep(0.1)
    findings = [] if lanes else ["the scheduler does not answer"]
    for lane in lanes:
        if _held(lane):
            held = f"{lane.owned_pages} pages owned, {lane.running} running, {lane.waiting} waiting"
            findings.append(f"not at rest: {held}")
        findings += list(lane.violations)
    return findings


def _held(lane: scheduler_pb2.LaneStatus) -> bool:
    return bool(lane.owned_pages or lane.running or lane.waiting)


async def _written_down(stack: Stack, crowd: Crowd) -> list[str]:
    """Prompts, outputs and keys in logs, metrics, events or tables."""
    texts = [call.text for call in crowd.outputs if leaks.searchable(call.text)]
    ids = [call.tokens[0] for call in crowd.outputs if len(call.tokens.get(0, ())) >= _CANARY_TOKENS]
    canaries = leaks.Canaries(prompt=PROMPTS, output=texts, key=[stack.gateways[0].api_key], tokens=ids)
    found = await asyncio.to_thread(leaks.in_platform, stack.data_dir, canaries)
    found += await asyncio.to_thread(canaries.find, stack.log.read_bytes(), "log")
    found += await leaks.in_postgres(stack.database_url, canaries)
    return [f"{leak.canary} is written down in {leak.where}" for leak in found]


def _report(
    minutes: float, seed: int, monkey: Monkey, crowd: Crowd, verdict: Verdict, healthy_s: float | None
) -> dict[str, Any]:
    return {
        "minutes": minutes,
        "seed": seed,
        "finished": verdict.finished,
        "accepted": verdict.accepted,
        "unheard": verdict.unheard,
        "finish_reasons": dict(verdict.reasons),
        "unresolved": verdict.unresolved,
        "refusals": dict(crowd.refusals),
        "kills": monkey.counts("kill"),
        "pauses": monkey.counts("pause"),
        "workers_lost_in_mid_stream": monkey.mid_stream,
        "healthy_after_s": healthy_s,
        "findings": verdict.findings,
        "faults": monkey.report(),
    }


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = []
    for name, value in report.items():
        if name in {"faults", "findings"}:
            continue
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        lines.append(f"  {name.replace('_', ' '):28} {shown}")
    lines += [f"  FINDING {finding}" for finding in report["findings"]]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run, report, and say by the exit code whether all held."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, default=Path("chaos-report.json"))
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-chaos-", dir="/tmp"))
    sys.stdout.write(f"chaos: seed {options.seed}, {options.minutes:g} minutes, files in {directory}\n")
    with imported("smollm2", SMOLLM2) as models_dir:
        report = asyncio.run(run(directory, models_dir, options.minutes, options.seed))
    options.report.write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(table(report) + "\n")
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
