"""The whole service as a process, against a real NATS."""

import asyncio
import os
import random
import re
import subprocess
import sys
import time
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit import lifecycle
from kit.bus import KvView
from kit.grpc import channel, service_error
from services.usage.core.keys import digest
from tests.support.usage import BASE_US, closed, opened
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.usage.v1 import usage_pb2, usage_pb2_grpc

DEV_KEY = "tl-dev-0123456789"


class UsageProcess:
    """`python -m services.usage` in a directory of its own."""

    def __init__(self, nats_url, state_dir, **env):
        self._env = os.environ | {
            "TOKENLOOM_NATS_URL": nats_url,
            "TOKENLOOM_STATE_DIR": str(state_dir),
            "TOKENLOOM_USAGE_LISTEN": "127.0.0.1:0",
            "TOKENLOOM_DEV_API_KEY": DEV_KEY,
            **env,
        }
        self._log = state_dir / "log"

    def start(self):
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.usage"], env=self._env, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while not (ready := re.search(r"ready .*", self.log())):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        self.target = re.search(r"target=(\S+)", ready[0])[1]
        self.metrics_url = re.search(r"metrics=(\S+)", ready[0])[1]

    def log(self):
        return self._log.read_text()

    def metric(self, name):
        with urllib.request.urlopen(self.metrics_url, timeout=5) as response:
            text = response.read().decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])

    def stop(self):
        self.process.terminate()
        return self.process.wait(20)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def usage(nats_server, tmp_path_factory):
    service = UsageProcess(nats_server.url, tmp_path_factory.mktemp("usage"))
    service.start()
    yield service
    service.kill()


@pytest.fixture
def first_id():
    """Request ids from here on are this test's own, as is the tenant named after it."""
    return random.getrandbits(62)


async def publish(bus, *events):
    for event in events:
        kind = "opened" if isinstance(event, events_pb2.UsageOpened) else "closed"
        told = event if kind == "opened" else event.opened
        msg_id = f"{kind}-{told.request_id}-{told.owner_epoch}"
        await bus.publish(f"usage.v1.{kind}.{told.tenant_id}", event.SerializeToString(), msg_id=msg_id)


async def listed(service, tenant, **fields):
    async with channel(service.target) as open_channel:
        stub = usage_pb2_grpc.UsageServiceStub(open_channel)
        request = usage_pb2.ListUsageRequest(**{"tenant_id": str(tenant), **fields})
        return await stub.ListUsage(request, timeout=5)


async def until_listed(service, tenant, count, *, closed_too=False, timeout_s=20):
    async with asyncio.timeout(timeout_s):
        while True:
            rows = (await listed(service, tenant, page_size=1000)).rows
            still_open = [row for row in rows if row.state == usage_pb2.ROW_STATE_OPEN]
            if len(rows) >= count and not (closed_too and still_open):
                return rows
            await asyncio.sleep(0.05)


async def test_events_become_rows_that_a_caller_can_list(usage, bus, first_id, eventually):
    tenant, second_id = str(first_id), first_id + 1
    await publish(bus, opened(first_id, tenant=tenant), closed(first_id, tenant=tenant, output=40))
    (row,) = await until_listed(usage, tenant, 1, closed_too=True)
    assert (row.request_id, row.tenant_id, row.owner_epoch) == (first_id, tenant, 1)
    assert (row.input_tokens, row.cached_tokens, row.output_tokens, row.billable_tokens) == (5, 2, 40, 45)
    assert (row.finish_reason, row.queue_ms, row.ttft_ms, row.total_ms) == (1, 1.5, 20.25, 900.125)
    assert row.opened_time.ToMicroseconds() == BASE_US
    assert row.closed_time.ToMicroseconds() == BASE_US + 900_125
    await publish(bus, opened(second_id, tenant=tenant))
    await until_listed(usage, tenant, 2)
    (still_open,) = (await listed(usage, tenant, request_id=second_id)).rows
    assert still_open.state == usage_pb2.ROW_STATE_OPEN
    assert not still_open.HasField("closed_time")
    await eventually(lambda: usage.metric("tokenloom_usage_rows_written_total") >= 2)
    await eventually(lambda: usage.metric("tokenloom_usage_event_lag_seconds_count") >= 3)


async def test_bad_fields_are_refused_by_name_over_grpc(usage):
    bad = {
        "tenant_id": {"tenant_id": ""},
        "page_size": {"page_size": 5000},
        "page_token": {"page_token": "x"},
    }
    bad["start_time"] = {"start_time": {"seconds": 2**62}}
    bad["end_time"] = {"end_time": {"seconds": -62_135_596_801}}  # the year before 1
    for field, change in bad.items():
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await listed(usage, "acme", **change)
        refusal = service_error(failure.value)
        assert (refusal.code.name, refusal.reason, refusal.field) == (
            "INVALID_ARGUMENT",
            "INVALID_REQUEST",
            field,
        )


async def test_pages_come_by_token_over_grpc(usage, bus, first_id):
    tenant, ids = str(first_id), list(range(first_id, first_id + 7))
    await publish(bus, *(closed(i, tenant=tenant, at_us=BASE_US + i - first_id) for i in ids))
    await until_listed(usage, tenant, 7)
    first = await listed(usage, tenant, page_size=4)
    second = await listed(usage, tenant, page_size=4, page_token=first.next_page_token)
    assert [row.request_id for page in (first, second) for row in page.rows] == ids[::-1]
    assert second.next_page_token == ""


async def test_the_development_key_is_published_as_a_digest_only(usage, bus):
    view = KvView(bus, "keys", events_pb2.KeyRecord.FromString)
    task = asyncio.create_task(view.run())
    await asyncio.wait_for(view.ready(), 10)
    await lifecycle.end(task)
    record = view.get(digest(DEV_KEY))
    assert (record.tenant_id, record.revoked) == ("dev", False)
    assert DEV_KEY not in usage.log()


async def test_a_key_that_the_bucket_lost_is_published_again(usage, bus, eventually):
    await bus.kv_put("keys", digest(DEV_KEY), None)
    await bus.kv_put("keys", "0" * 64, b"")
    view = KvView(bus, "keys", events_pb2.KeyRecord.FromString)
    task = asyncio.create_task(view.run())
    await asyncio.wait_for(view.ready(), 10)
    await eventually(lambda: [key for key, _ in view.items()] == [digest(DEV_KEY)])
    await lifecycle.end(task)


async def test_a_kill_in_the_middle_loses_and_doubles_nothing(usage, bus, first_id):
    tenant, ids = str(first_id), range(first_id, first_id + 400)
    events = [make(i, tenant=tenant) for i in ids for make in (opened, closed)]
    await publish(bus, *events[:600])
    usage.kill()
    await publish(bus, *events[600:])
    usage.start()
    rows = await until_listed(usage, tenant, 400, closed_too=True, timeout_s=60)
    assert sorted(row.request_id for row in rows) == list(ids)
    assert sum(row.billable_tokens for row in rows) == 400 * 92


async def test_nats_going_away_is_survived_and_the_rest_arrives_once(
    usage, bus, nats_server, first_id, eventually
):
    tenant = str(first_id)
    await publish(bus, closed(first_id, tenant=tenant))
    await until_listed(usage, tenant, 1)
    nats_server.kill()
    await asyncio.sleep(0.5)
    assert len((await listed(usage, tenant)).rows) == 1
    nats_server.start()
    await eventually(lambda: bus.connected)
    await publish(bus, closed(first_id + 1, tenant=tenant))
    await until_listed(usage, tenant, 2)
    assert usage.process.poll() is None


async def test_sigterm_drains_and_exits_0(usage):
    async with channel(usage.target) as open_channel:
        health = health_pb2_grpc.HealthStub(open_channel)
        response = await health.Check(health_pb2.HealthCheckRequest())
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    assert usage.stop() == 0
    assert "Traceback" not in usage.log()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENLOOM_DATABASE_URL", "mysql://x"),
        ("TOKENLOOM_USAGE_LEASE_S", "-1"),
        ("TOKENLOOM_NATS_URL", None),
    ],
)
def test_a_bad_environment_stops_the_start_by_name(tmp_path, name, value):
    env = os.environ | {"TOKENLOOM_NATS_URL": "nats://127.0.0.1:1", "TOKENLOOM_STATE_DIR": str(tmp_path)}
    env |= {"TOKENLOOM_USAGE_LISTEN": "127.0.0.1:0", name: value or ""}
    if value is None:
        del env[name]
    result = subprocess.run(
        [sys.executable, "-m", "services.usage"], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert name in result.stderr
    assert result.stdout == ""
