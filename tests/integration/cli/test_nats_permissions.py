"""Every service's NATS user may do what its service does, and publish nothing that is another's."""

from __future__ import annotations

import asyncio

import nats
import nats.errors
import pytest

from kit import lifecycle
from kit.bus import Bus, KvView
from kit.kv_store import Entry, KvStore, RevisionError
from tokenloom.up import nats as broker
from tokenloom.up.child import Child
from tokenloom.up.console import Console
from tokenloom.up.layout import environment
from tokenloom.up.ports import Ports
from tokenloom.up.probes import Health

PASSWORDS = {user: f"secret-of-{user}" for user in broker.USERS}
SUBJECTS = [
    "usage.v1.closed.dev",
    "deployment.v1.worker.w1",
    "$KV.keys.abc",
    "$KV.routes.m",
    "$KV.idempotency.abc",
    "metrics.v1.x",
    "x",
]
OWN = {
    "gateway": {"usage.v1.closed.dev", "$KV.idempotency.abc"},
    "scheduler": {"usage.v1.closed.dev"},
    "worker": set(),
    "usage": {"$KV.keys.abc"},
    "registry": {"deployment.v1.worker.w1", "$KV.routes.m"},
}


@pytest.fixture
async def urls(tmp_path, capsys):
    """A real server with the generated configuration; the URL of each user."""
    ports = Ports()
    at = broker.Addresses(ports.pick(), ports.pick())
    config = tmp_path / "nats.conf"
    config.write_text(broker.config(at, tmp_path / "jetstream", PASSWORDS))
    spec = broker.spec(config, at, environment())
    with (tmp_path / "log").open("w") as log:
        child = await Child.start(spec, Console(log))
        async with asyncio.timeout(10):
            while await spec.probe(1.0) is not Health.SERVING:  # noqa: ASYNC110 - a process, not a task
                await asyncio.sleep(0.02)
        yield {user: broker.url(user, at.port, PASSWORDS) for user in broker.USERS}
        assert await child.stop(5.0)


async def connect(urls, user, errors=None):
    async def note(error):
        if errors is not None:
            errors.append(str(error))

    return await nats.connect(urls[user], inbox_prefix=f"_INBOX.{user}", error_cb=note, allow_reconnect=False)


@pytest.mark.parametrize("user", broker.USERS)
async def test_a_user_publishes_only_what_is_its_own(urls, user):
    errors: list[str] = []
    client = await connect(urls, user, errors)
    for subject in SUBJECTS:
        await client.publish(subject, b"forged")
    await client.flush()
    await asyncio.sleep(0.05)
    await client.close()
    refused = {
        subject for subject in SUBJECTS if any(f'"{subject.lower()}"' in error.lower() for error in errors)
    }
    assert set(SUBJECTS) - refused == OWN[user]


@pytest.mark.parametrize("subject", ["usage.v1.>", "_INBOX.>", "_INBOX.usage.>", ">", "$KV.keys.>"])
async def test_a_user_reads_no_inbox_but_its_own(urls, subject):
    errors: list[str] = []
    client = await connect(urls, "gateway", errors)
    await client.subscribe(subject)
    await client.flush()
    await asyncio.sleep(0.05)
    await client.close()
    assert any("permissions violation" in error.lower() for error in errors)


async def test_nobody_enters_without_a_password(urls):
    address = urls["gateway"].rpartition("@")[2]
    with pytest.raises(nats.errors.Error):
        await nats.connect(f"nats://{address}", allow_reconnect=False, error_cb=lambda _: asyncio.sleep(0))


async def test_no_user_can_redefine_or_purge_the_usage_stream_of_billing(urls):
    usage = await Bus.connect(urls["usage"], "usage")
    await usage.ensure_stream("USAGE", ["usage.v1.>"], 60)
    for user in ("gateway", "scheduler", "registry"):
        client = await connect(urls, user)
        for verb in ("STREAM.DELETE", "STREAM.PURGE", "STREAM.UPDATE"):
            with pytest.raises(nats.errors.Error):
                await client.request(f"$JS.API.{verb}.USAGE", b"", timeout=0.2)
        await client.close()
    await usage.close()


async def test_usage_events_flow_from_gateway_and_scheduler_to_the_usage_service(urls):
    usage = await Bus.connect(urls["usage"], "usage")
    await usage.ensure_stream("USAGE", ["usage.v1.>"], 60)
    seen: list[bytes] = []
    done = asyncio.Event()

    async def take(messages):
        seen.extend(message.data for message in messages)
        if len(seen) == 2:
            done.set()

    consumer = asyncio.create_task(usage.consume("USAGE", "ledger", take, 10))
    for user in ("gateway", "scheduler"):
        bus = await Bus.connect(urls[user], user)
        await bus.publish("usage.v1.opened.dev", user.encode(), msg_id=user)
        await bus.close()
    await asyncio.wait_for(done.wait(), 10)
    await lifecycle.end(consumer)
    await usage.close()
    assert sorted(seen) == [b"gateway", b"scheduler"]


async def test_deployment_events_flow_from_the_registry_to_the_scheduler(urls):
    registry = await Bus.connect(urls["registry"], "registry")
    await registry.ensure_stream("DEPLOYMENT", ["deployment.v1.>"], 60)
    await registry.publish("deployment.v1.worker.w1", b"ready", msg_id="1")
    scheduler = await Bus.connect(urls["scheduler"], "scheduler")
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    watch = asyncio.create_task(
        scheduler.last_per_subject(
            "DEPLOYMENT", "deployment.v1.worker.>", lambda message: seen.put_nowait(message.data)
        )
    )
    assert await asyncio.wait_for(seen.get(), 10) == b"ready"
    await lifecycle.end(watch)
    await scheduler.close()
    await registry.close()


@pytest.mark.parametrize(("owner", "bucket"), [("usage", "keys"), ("registry", "routes")])
async def test_the_gateway_watches_the_buckets_that_their_owners_write(urls, owner, bucket):
    writer = await Bus.connect(urls[owner], owner)
    await (await writer.ensure_kv(bucket)).put("name", b"value")
    gateway = await Bus.connect(urls["gateway"], "gateway")
    view: KvView[bytes] = KvView(gateway, bucket, bytes)
    running = asyncio.create_task(view.run())
    await asyncio.wait_for(view.ready(), 10)
    assert view.get("name") == b"value"
    await lifecycle.end(running)
    await gateway.close()
    await writer.close()


async def test_gateways_share_the_bucket_of_idempotency_keys(urls):
    gateways = [await Bus.connect(urls["gateway"], name) for name in ("gateway-1", "gateway-2")]
    for ttl_s, gateway in enumerate(gateways, 60):
        await gateway.ensure_kv("idempotency", ttl_s)
    first, second = (KvStore(gateway, "idempotency", timeout_s=1.0) for gateway in gateways)
    revision = await first.write("digest", b"claim", revision=0)
    with pytest.raises(RevisionError):
        await second.write("digest", b"claim", revision=0)
    assert await second.read("digest") == Entry(b"claim", revision)
    assert (await second.read("another")).value is None
    await second.write("digest", None, revision=revision)
    for gateway in gateways:
        await gateway.close()
