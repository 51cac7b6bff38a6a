"""The check: what callers were told, against what billing has. Every finding is a sentence."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.clients import GONE, REFUSALS
from tests.chaos.stack import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.chaos.monkey import Fault

REASONS = ("", "stop", "length", "deadline", "cancelled", "incomplete", "error")
# After its gateway fell a request waits for an owner, at the scheduler alone, for so long.
_OWNERLESS_S = LEASE_S + 15.0 + 2.0
# After the scheduler fell it is its gateway's alone to submit again or to close, for so long.
_ADRIFT_S = LEASE_S + 10.0
# No request of this run lives longer than that.
_LIFE_S = 60.0


@dataclass
class Told:
    """All that callers were told of one request."""

    tokens: dict[int, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    dones: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)

    def output(self) -> int:
        """Tokens that some caller has seen."""
        longest: dict[int, int] = defaultdict(int)
        for choices in self.tokens.values():
            for choice, ids in choices.items():
                longest[choice] = max(longest[choice], len(ids))
        return sum(longest.values())

    def contradictions(self) -> bool:
        """Whether two callers saw different tokens."""
        for choice in {choice for choices in self.tokens.values() for choice in choices}:
            seen = sorted((one[choice] for one in self.tokens.values() if choice in one), key=len)
            if any(longer[: len(shorter)] != shorter for shorter, longer in itertools.pairwise(seen)):
                return True
        return False


@dataclass
class Verdict:
    """What a run came to."""

    findings: list[str] = field(default_factory=list)
    finished: int = 0
    accepted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unresolved: int = 0
    unheard: int = 0  # rows of requests whose caller lost the connection before it was told


def judge(
    lines: Iterable[dict[str, Any]], rows: Sequence[dict[str, Any]], faults: Sequence[Fault]
) -> Verdict:
    """Compare journals with the ledger's rows."""
    verdict = Verdict()
    told = _collect(lines, verdict)
    by_id = {row["request_id"]: row for row in rows}
    for request_id, story in told.items():
        _judge_one(request_id, story, by_id.get(int(request_id.removeprefix("gen-"), 16)), verdict)
    known = {int(request_id.removeprefix("gen-"), 16) for request_id in told}
    verdict.accepted = len(told)
    verdict.unheard = len(by_id.keys() - known)
    for row in rows:
        verdict.findings += _row_findings(row)
        if row["closed_us"] is None:
            verdict.unresolved += 1
            if not _excused(row, faults):
                verdict.findings.append(f"{_name(row)} is unresolved, and its owner or scheduler lived")
        else:
            verdict.reasons[REASONS[row["finish_reason"]]] += 1
    return verdict


def _collect(lines: Iterable[dict[str, Any]], verdict: Verdict) -> dict[str, Told]:
    told: dict[str, Told] = defaultdict(Told)
    calls: dict[int, _Asked] = {}
    for line in lines:
        if line["kind"] == "asked":
            calls[line["call"]] = _Asked(line)
        else:
            _hear(told, calls[line["call"]], line, verdict)
    by_key: dict[str, set[str]] = defaultdict(set)
    for asked in calls.values():
        if asked.key and asked.request_id:
            by_key[asked.key].add(asked.request_id)
    verdict.findings += [
        f"key {key} made {len(ids)} generations" for key, ids in by_key.items() if len(ids) > 1
    ]
    return told


class _Asked:
    def __init__(self, line: dict[str, Any]) -> None:
        self.number: int = line["call"]
        self.scenario: str = line["scenario"]
        self.key: str | None = line["key"]
        self.body: dict[str, Any] = line["body"]
        self.request_id = ""


def _hear(told: dict[str, Told], asked: _Asked, line: dict[str, Any], verdict: Verdict) -> None:
    who = f"call {asked.number} ({asked.scenario})"
    match line["kind"]:
        case "accepted":
            asked.request_id = line["request_id"]
            told[asked.request_id].body = asked.body
        case "tokens":
            mine = told[asked.request_id].tokens[asked.number]
            mine.setdefault(line["choice"], []).extend(line["ids"])
        case "done":
            told[asked.request_id].dones.append(line)
            verdict.finished += 1
        case "failed":
            told[asked.request_id].failures.append(line["reason"])
            verdict.finished += 1
        case "violation":
            verdict.findings.append(f"{who}: {line['what']}")
        case "refused":
            allowed = REFUSALS | (GONE if asked.request_id or asked.key else set())
            if line["reason"] not in allowed:
                verdict.findings.append(f"{who}: refused with {line['reason']}")


def _judge_one(request_id: str, story: Told, row: dict[str, Any] | None, verdict: Verdict) -> None:
    say = verdict.findings.append
    if story.contradictions():
        say(f"{request_id}: two callers saw different tokens")
    if story.failures and story.dones:
        say(f"{request_id}: done for one caller, failed for another")
    if row is None:
        say(f"{request_id} was accepted and has no row")
    elif row["closed_us"] is not None:
        verdict.findings += _differences(request_id, story, row)
    elif story.dones or story.failures:
        say(f"{request_id} ended for its caller and its row is open")


def _differences(request_id: str, story: Told, row: dict[str, Any]) -> list[str]:
    findings = []
    reason, output, seen = REASONS[row["finish_reason"]], row["output_tokens"], story.output()
    for done in story.dones:
        said = (done["finishReason"], done["outputTokens"], done["inputTokens"])
        if said != (reason, output, row["input_tokens"]):
            findings.append(
                f"{request_id}: done said {said}, the row {reason}, {output}, {row['input_tokens']}"
            )
        if output != seen:
            findings.append(f"{request_id}: done with {output} tokens, callers saw {seen}")
    if story.failures and reason != "error":
        findings.append(f"{request_id} failed with {story.failures[0]}, the row has {reason}")
    most = story.body["maxOutputTokens"] * story.body.get("n", 1)
    if not seen <= output <= most:
        findings.append(f"{request_id}: {output} tokens billed, {seen} seen, at most {most} asked for")
    return findings


def _row_findings(row: dict[str, Any]) -> list[str]:
    billable = 0 if REASONS[row["finish_reason"]] == "error" else row["input_tokens"] + row["output_tokens"]
    if row["closed_us"] is not None and row["billable_tokens"] != billable:
        return [f"{_name(row)} bills {row['billable_tokens']} instead of {billable}"]
    return []


def _excused(row: dict[str, Any], faults: Sequence[Fault]) -> bool:
    """Whether the gateway and the scheduler fell one after the other while the request hung on them."""
    opened = row["opened_us"] / 1e6
    fell = [fault for fault in faults if opened - 1 <= fault.at <= opened + _LIFE_S]
    gateways = [fault.at for fault in fell if fault.role == "gateway"]
    schedulers = [fault.at for fault in fell if fault.role == "scheduler"]
    return any(-_ADRIFT_S <= later - one <= _OWNERLESS_S for one in gateways for later in schedulers)


def _name(row: dict[str, Any]) -> str:
    return f"gen-{row['request_id']:016x}"
