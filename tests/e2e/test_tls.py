"""The whole platform over TLS: each service to those it is for, gateways to callers, and nobody else."""

from __future__ import annotations

import asyncio
import json
import ssl
import time

import aiohttp
import grpc
import nats
import pytest
from click.testing import CliRunner

from kit.errors import Code
from kit.grpc import channel, service_error
from tests.e2e.conftest import StackOptions
from tests.support.certificates import Authority, check_turned_away
from tokenloom.api.registry.v1 import registry_pb2, registry_pb2_grpc
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tokenloom.api.usage.v1 import usage_pb2, usage_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2, worker_pb2_grpc
from tokenloom.cli import main
from tokenloom.client import Client, Done, TokenloomError, Tokens

MODEL = "smollm2-135m-instruct"

pytestmark = pytest.mark.parametrize("stack", [StackOptions(tls=True)], indirect=True)


@pytest.fixture
def authority(stack):
    return Authority.at(stack.data_dir / "certs")


SCHEDULER, WORKER = scheduler_pb2_grpc.SchedulerServiceStub, worker_pb2_grpc.WorkerServiceStub
REGISTRY, USAGE = registry_pb2_grpc.RegistryServiceStub, usage_pb2_grpc.UsageServiceStub


def unary(stub, method, request):
    return lambda to: getattr(stub(to), method)(request, timeout=5)


def stream(stub, method):
    return lambda to: anext(aiter(getattr(stub(to), method)(iter(()))))


# What each service would do for the caller it is for.
CALLS = {
    "lane": ("scheduler", stream(SCHEDULER, "Lane"), "gateway"),
    "inspect": ("scheduler", unary(SCHEDULER, "Inspect", scheduler_pb2.InspectRequest()), "operator"),
    "run": ("worker", stream(WORKER, "Run"), "scheduler"),
    "describe": ("worker", unary(WORKER, "Describe", worker_pb2.DescribeRequest()), "scheduler"),
    "renew": ("registry", unary(REGISTRY, "RenewLease", registry_pb2.RenewLeaseRequest()), "worker"),
    "models": ("registry", unary(REGISTRY, "ListModels", registry_pb2.ListModelsRequest()), "operator"),
    "ledger": ("usage", unary(USAGE, "ListUsage", usage_pb2.ListUsageRequest()), "gateway"),
}


async def denied(stack, authority, call, role):
    """Why a role is not let through; None when the service itself answers, whatever it says."""
    service, make, _ = CALLS[call]
    async with channel(
        stack.service(service)["target"], role=service, tls=authority.identity(role)
    ) as to_service:
        try:
            async with asyncio.timeout(5):
                await make(to_service)
        except grpc.aio.AioRpcError as error:
            refusal = service_error(error)
            return refusal if refusal.reason == "ROLE_NOT_ALLOWED" else None
        except (TimeoutError, StopAsyncIteration):
            return None


async def test_a_generation_streams_and_is_billed_over_tls(stack, authority):
    assert stack.http_url.startswith("https://")
    async with Client(stack.grpc_target, stack.api_key, ca=authority.ca) as client:
        events = [e async for e in client.generate(MODEL, "The sea", max_output_tokens=8, temperature=0)]
    text = "".join(event.text for event in events if isinstance(event, Tokens))
    assert isinstance(events[-1], Done)
    context = ssl.create_default_context(cafile=authority.ca)
    key = {"Authorization": f"Bearer {stack.api_key}"}
    body = {"model": MODEL, "prompt": "The sea", "maxOutputTokens": 8, "temperature": 0}
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(headers=key, connector=connector) as session,
        session.post(f"{stack.http_url}/v1/generations", json=body) as response,
    ):
        assert (await response.json())["text"] == text
    until, output = time.monotonic() + 10, ""
    while "length" not in output:  # billing hears of it later than the caller
        assert time.monotonic() < until, output
        result = await asyncio.to_thread(
            CliRunner().invoke, main, ["usage", "--data-dir", str(stack.data_dir)]
        )
        output = result.output
        assert result.exit_code == 0, output


async def test_callers_in_the_clear_or_with_another_authority_are_told_nothing(stack, tmp_path):
    stranger = Authority(tmp_path).ca
    for ca in (None, stranger, "system"):
        async with Client(stack.grpc_target, stack.api_key, ca=ca) as client:
            with pytest.raises(TokenloomError) as caught:
                await client.list_models()
        assert caught.value.code == "UNAVAILABLE"
    async with aiohttp.ClientSession() as session:
        for url in (stack.http_url, stack.http_url.replace("https", "http")):
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{url}/health")


@pytest.mark.parametrize("call", CALLS)
async def test_only_the_right_role_may_call(stack, authority, call):
    for role in ("scheduler", "gateway", "worker", "usage", "registry", "operator"):
        refusal = await denied(stack, authority, call, role)
        wanted = CALLS[call][2]
        if role == wanted:
            assert refusal is None
        elif refusal is None:
            assert (call, role) in {("inspect", "gateway"), ("ledger", "operator")}
        else:
            assert refusal.code is Code.PERMISSION_DENIED


@pytest.mark.parametrize("service", ["scheduler", "worker", "registry", "usage"])
async def test_without_a_certificate_of_the_platform_no_service_listens(stack, authority, tmp_path, service):
    target = stack.service(service)["target"]
    stranger = Authority(tmp_path).pair("gateway")
    await check_turned_away(target, service, authority, stranger, "/grpc.health.v1.Health/Check")


async def test_nats_asks_for_a_certificate_before_any_password(stack, authority):
    password = json.loads((stack.data_dir / "secrets.json").read_text())["nats"]["gateway"]
    address = stack.service("nats")["target"]
    quick = {"allow_reconnect": False, "connect_timeout": 2}
    trusting = ssl.create_default_context(cafile=authority.ca)
    for options in ({}, {"tls": trusting, "tls_handshake_first": True}):
        with pytest.raises((nats.errors.Error, OSError, TimeoutError)):
            await nats.connect(f"tls://gateway:{password}@{address}", **options, **quick)
    trusting.load_cert_chain(authority.pair("gateway").cert, authority.pair("gateway").key)
    client = await nats.connect(
        f"tls://gateway:{password}@{address}", tls=trusting, tls_handshake_first=True, **quick
    )
    await client.close()
