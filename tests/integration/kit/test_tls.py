"""TLS and roles between services, on real connections."""

import asyncio
import ssl
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit.errors import Code
from kit.grpc import Server, channel, service_error
from kit.metrics import REGISTRY
from kit.renewal import server_context
from kit.tls import Identity
from tests.support.certificates import Authority

ALLOWED = {"test.Echo": ("gateway",), "test.Echo/Open": ("gateway", "operator")}


async def unary(request, context):
    return request


async def stream(request, context):
    yield request
    await asyncio.Event().wait()


HANDLERS = grpc.method_handlers_generic_handler(
    "test.Echo",
    {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Open": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    },
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certs"))


@pytest.fixture(params=["tcp", "unix"])
async def target(request, authority, tmp_path):
    listen = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/echo.sock"
    server = Server(listen, tls=authority.identity("scheduler"), allowed=ALLOWED)
    server.aio.add_generic_rpc_handlers((HANDLERS,))
    yield await server.start(["test.Echo"])
    await server.stop(0)


async def call(target, tls, method="Unary", role="scheduler"):
    async with channel(target, role=role, tls=tls) as to_server:
        return await to_server.unary_unary(f"/test.Echo/{method}")(b"hello", timeout=5)


async def refusal(*args, **kwargs):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(*args, **kwargs)
    return service_error(caught.value)


async def test_the_right_role_may_call(target, authority):
    assert await call(target, authority.identity("gateway")) == b"hello"
    assert await call(target, authority.identity("operator"), "Open") == b"hello"


@pytest.mark.parametrize("role", ["worker", "usage", "registry", "scheduler", "operator"])
async def test_another_role_is_denied_by_name(target, authority, role):
    error = await refusal(target, authority.identity(role))
    assert (error.code, error.reason) == (Code.PERMISSION_DENIED, "ROLE_NOT_ALLOWED")
    assert role in error.message
    assert "test.Echo/Unary is for gateway" in error.message


async def test_a_stream_is_denied_as_a_call_is(target, authority):
    async with channel(target, role="scheduler", tls=authority.identity("worker")) as to_server:
        running = to_server.unary_stream("/test.Echo/Stream")(b"hello", timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(running))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_what_is_listed_for_nobody_nobody_may_call(authority):
    server = Server("127.0.0.1:0", tls=authority.identity("scheduler"))
    server.aio.add_generic_rpc_handlers((HANDLERS,))
    unlisted = await server.start(["test.Echo"])
    error = await refusal(unlisted, authority.identity("gateway"))
    await server.stop(0)
    assert error.code is Code.PERMISSION_DENIED


async def test_a_certificate_without_a_role_is_unauthenticated(target, authority, tmp_path, monkeypatch):
    monkeypatch.setattr("tokenloom.certificates.DOMAIN", "elsewhere.internal")
    authority.renew()
    stranger = authority.identity("gateway")
    async with channel(target, role="scheduler", tls=stranger) as to_server:
        monkeypatch.undo()
        authority.renew()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await to_server.unary_unary("/test.Echo/Unary")(b"hello", timeout=5)
    assert service_error(caught.value).code is Code.UNAUTHENTICATED


async def test_a_client_without_a_certificate_or_with_another_authority_gets_no_connection(
    target, authority, tmp_path
):
    ca, name = authority.ca.read_bytes(), (("grpc.ssl_target_name_override", "scheduler.tokenloom.internal"),)
    other = Authority(tmp_path / "other")
    pair = other.pair("gateway")
    for credentials in (
        grpc.ssl_channel_credentials(ca),
        grpc.ssl_channel_credentials(ca, pair.key.read_bytes(), pair.cert.read_bytes()),
    ):
        async with grpc.aio.secure_channel(target, credentials, options=name) as to_server:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await to_server.unary_unary("/test.Echo/Unary")(b"hello", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (await refusal(target, None)).code is Code.UNAVAILABLE


async def test_a_server_of_another_role_or_authority_is_not_trusted(target, authority, tmp_path):
    assert (await refusal(target, authority.identity("gateway"), role="worker")).code is Code.UNAVAILABLE
    other = Authority(tmp_path / "other").identity("gateway")
    assert (await refusal(target, other)).code is Code.UNAVAILABLE


async def test_health_is_for_every_role(target, authority):
    for role in ("operator", "worker"):
        async with channel(target, role="scheduler", tls=authority.identity(role)) as to_server:
            response = await health_pb2_grpc.HealthStub(to_server).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
        assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_without_client_certificates_roles_are_not_asked_for(authority):
    own = authority.identity("scheduler")
    server = Server("127.0.0.1:0", tls=Identity(own.pair, own.ca, require_client_cert=False), allowed=ALLOWED)
    server.aio.add_generic_rpc_handlers((HANDLERS,))
    target = await server.start(["test.Echo"])
    name = (("grpc.ssl_target_name_override", "scheduler.tokenloom.internal"),)
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    async with grpc.aio.secure_channel(target, credentials, options=name) as to_server:
        assert await to_server.unary_unary("/test.Echo/Unary")(b"hello", timeout=5) == b"hello"
    await server.stop(0)


async def served_certificate(host, port, ca):
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return der


async def grpc_listener(pair):
    server = Server("127.0.0.1:0", tls=pair)
    target = await server.start([])
    return int(target.rpartition(":")[2]), lambda: server.stop(0)


async def tls_listener(pair):
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=server_context(pair))

    async def stop():
        server.close()

    return server.sockets[0].getsockname()[1], stop


@pytest.mark.parametrize("mutual", [True, False], ids=["tls", "in the clear"])
async def test_a_server_that_is_slow_to_answer_the_first_time_is_waited_for(authority, mutual):
    identity = authority.identity("scheduler") if mutual else None
    server = Server("127.0.0.1:0", tls=identity, allowed=ALLOWED)
    server.aio.add_generic_rpc_handlers((HANDLERS,))
    host, _, port = (await server.start(["test.Echo"])).rpartition(":")

    async def pump(source, sink):
        while data := await source.read(1 << 16):
            sink.write(data)

    async def pass_on_late(reader, writer):
        await asyncio.sleep(0.4)
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.wait(
            {asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))}
        )

    slow = await asyncio.start_server(pass_on_late, "127.0.0.1", 0)
    target = f"127.0.0.1:{slow.sockets[0].getsockname()[1]}"
    assert await call(target, authority.identity("gateway") if mutual else None) == b"hello"
    slow.close()
    await server.stop(0)


async def test_when_a_listeners_certificate_ends_is_exported(authority):
    server = Server("127.0.0.1:0", tls=authority.identity("scheduler"))
    await server.start([])
    await server.stop(0)
    name = "tokenloom_certificate_expires_timestamp_seconds"
    left_s = REGISTRY.get_sample_value(name, {"cert": "scheduler.pem"}) - time.time()
    assert 0.9 < left_s / (24 * 3600) <= 1


@pytest.mark.parametrize("listener", [grpc_listener, tls_listener])
async def test_renewed_files_count_from_the_next_connection_on_and_damaged_ones_never(tmp_path, listener):
    authority = Authority(tmp_path)
    pair = authority.pair("edge")
    port, stop = await listener(pair)

    async def served():
        return await served_certificate("127.0.0.1", port, authority.ca)

    first = pair.cert.read_text()
    assert await served() == await served() == ssl.PEM_cert_to_DER_cert(first)
    authority.renew()
    second = pair.cert.read_text()
    assert await served() == ssl.PEM_cert_to_DER_cert(second) != ssl.PEM_cert_to_DER_cert(first)
    pair.cert.write_text(first)  # a half-finished renewal: no longer the key's
    assert await served() == ssl.PEM_cert_to_DER_cert(second)
    pair.key.unlink()
    assert await served() == ssl.PEM_cert_to_DER_cert(second)
    authority.renew()
    assert (
        await served() == ssl.PEM_cert_to_DER_cert(pair.cert.read_text()) != ssl.PEM_cert_to_DER_cert(second)
    )
    await stop()
