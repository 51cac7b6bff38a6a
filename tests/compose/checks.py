"""What the drills look at."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from tests.compose.stack import MODEL, POLL_S, docker
from tests.compose.traffic import generate
from tokenloom.client import TokenloomError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.compose.stack import Gateway, Stack
    from tests.compose.traffic import Load, Outcome

T = TypeVar("T")
# What may be said to a new request while a service is replaced.
REFUSALS = frozenset({"NO_CAPACITY", "DRAINING", "QUEUE_FULL"})
_COLUMNS = "tenant_id, input_tokens, output_tokens, billable_tokens, finish_reason"


def size(image: str) -> int:
    """An image's bytes."""
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))


def inside(image: str, command: str) -> str:
    """What a shell command says in a fresh container of the image."""
    return docker("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", command).strip()


def revision(container: str) -> str:
    """The revision that the container's image is labelled with."""
    label = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
    return docker("inspect", "--format", label, container).strip()


def seat(container: str) -> str:
    """The seat that the container's service holds."""
    environment = docker("exec", container, "cat", "/proc/1/task/1/children").split()
    lines = docker("exec", container, "cat", f"/proc/{environment[0]}/environ").split("\0")
    return next(line.partition("=")[2] for line in lines if line.startswith("TOKENLOOM_GATEWAY_ID="))


def post(gateway: Gateway, key: str, prompt: str, tokens: int) -> dict[str, Any]:
    """One generation over HTTP, whole."""
    body = {"model": MODEL, "prompt": prompt, "maxOutputTokens": tokens, "temperature": 0, "ignoreEos": True}
    request = urllib.request.Request(
        f"{gateway.http_url}/v1/generations",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


async def eventually(condition: Callable[[], Awaitable[T]], complaint: str, within_s: float = 60.0) -> T:
    """What the condition gives once it gives something; `complaint` when it does not in time."""
    deadline = time.monotonic() + within_s
    while not (found := await condition()):
        assert time.monotonic() < deadline, complaint
        await asyncio.sleep(POLL_S)
    return found


async def refused(gateway: Gateway, key: str) -> bool:
    """Whether the key is refused as bad."""
    try:
        await generate(gateway, key, "Hello", 1)
    except TokenloomError as error:
        if error.reason != "INVALID_API_KEY":
            raise
        return True
    return False


async def row(stack: Stack, outcome: Outcome, within_s: float = 60.0) -> list[str]:
    """The request's closed row in PostgreSQL, once it is there."""
    statement = f"SELECT {_COLUMNS} FROM ledger WHERE request_id = {outcome.number} AND closed_us IS NOT NULL"

    async def found() -> list[list[str]]:
        return await asyncio.to_thread(stack.sql, statement)

    (only,) = await eventually(found, f"no row for {outcome.request_id}", within_s)
    return only


async def hold_the_contract(stack: Stack, load: Load, *, unreachable: bool = False) -> str:
    """Nothing accepted broke, refusals said when to come again, rows are as callers saw them.

    `unreachable`: a gateway was away, so that calls to it may have reached nobody. Says what was refused.
    """
    assert not load.broken, load.broken
    reasons = Counter(error.reason for error in load.refusals)
    assert reasons.keys() <= REFUSALS | ({"UNAVAILABLE"} if unreachable else set()), reasons
    assert all(error.retry_after for error in load.refusals if error.reason in REFUSALS), load.refusals
    assert {outcome.ended for outcome in load.outcomes} <= {"FINISH_REASON_LENGTH"}
    await _billed(stack, load.outcomes)
    return ", ".join(f"{reason} {count} times" for reason, count in reasons.items()) or "none"


async def _billed(stack: Stack, outcomes: Sequence[Outcome]) -> None:
    numbers = ",".join(str(outcome.number) for outcome in outcomes)
    columns, closed = "request_id, output_tokens", f"closed_us IS NOT NULL AND request_id IN ({numbers})"
    expected = {str(outcome.number): str(len(outcome.token_ids)) for outcome in outcomes}

    async def agrees() -> bool:
        rows = await asyncio.to_thread(stack.sql, f"SELECT {columns} FROM ledger WHERE {closed}")
        return dict(rows) == expected

    await eventually(agrees, "the ledger differs from what callers saw")
