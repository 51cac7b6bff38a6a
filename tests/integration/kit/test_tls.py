"""TLS and roles between services, on real connections."""

import asyncio
import contextlib
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
from tests.support.certificates import Authority, check_turned_away

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


@contextlib.asynccontextmanager
async def listening(tls, allowed=ALLOWED, listen="127.0.0.1:0"):
    server = Server(listen, tls=tls, allowed=allowed)
    server.aio.add_generic_rpc_handlers((HANDLERS,))
    try:
        yield await server.start(["test.Echo"])
    finally:
        await server.stop(0)


@pytest.fixture(params=["tcp", "unix"])
async def target(request, authority, tmp_path):
    listen = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/echo.sock"
    async with listening(authority.identity("scheduler"), listen=listen) as target:
        yield target


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
    async with listening(authority.identity("scheduler"), allowed=None) as unlisted:
        error = await refusal(unlisted, authority.identity("gateway"))
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
    stranger = Authority(tmp_path / "other").pair("gateway")
    await check_turned_away(target, "scheduler", authority, stranger, "/test.Echo/Unary")
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
    name = (("grpc.ssl_target_name_override", "scheduler.tokenloom.internal"),)
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    async with (
        listening(Identity(own.pair, own.ca, require_client_cert=False)) as target,
        grpc.aio.secure_channel(target, credentials, options=name) as to_server,
    ):
        assert await to_server.unary_unary("/test.Echo/Unary")(b"hello", timeout=5) == b"hello"


async def served_certificate(host, port, ca):
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return der


@contextlib.asynccontextmanager
async def grpc_listener(pair):
    async with listening(pair) as target:
        yield int(target.rpartition(":")[2])


@contextlib.asynccontextmanager
async def tls_listener(pair):
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=server_context(pair))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def pump(source, sink):
    while data := await source.read(1 << 16):
        sink.write(data)


@pytest.mark.parametrize("mutual", [True, False], ids=["tls", "in the clear"])
async def test_a_server_that_is_slow_to_answer_the_first_time_is_waited_for(authority, mutual):
    async with listening(authority.identity("scheduler") if mutual else None) as behind:
        host, _, port = behind.rpartition(":")

        async def pass_on_late(reader, writer):
            await asyncio.sleep(0.4)
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.wait(
                {asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))}
            )

        slow = await asyncio.start_server(pass_on_late, "127.0.0.1", 0)
        target = f"127.0.0.1:{slow.sockets[0].getsockname()[1]}"
        try:
            assert await call(target, authority.identity("gateway") if mutual else None) == b"hello"
        finally:
            slow.close()


async def test_when_a_listeners_certificate_ends_is_exported(authority):
    async with listening(authority.identity("scheduler")):
        name = "tokenloom_certificate_expires_timestamp_seconds"
        left_s = REGISTRY.get_sample_value(name, {"cert": "scheduler.pem"}) - time.time()
    assert 0.9 < left_s / (24 * 3600) <= 1


def der(path):
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.mark.parametrize("listener", [grpc_listener, tls_listener])
async def test_renewed_files_count_from_the_next_connection_on_and_damaged_ones_never(tmp_path, listener):
    authority = Authority(tmp_path)
    pair = authority.pair("edge")
    first, first_text = der(pair.cert), pair.cert.read_text()
    async with listener(pair) as port:

        async def served():
            return await served_certificate("127.0.0.1", port, authority.ca)

        assert await served() == await served() == first
        authority.renew()
        second = der(pair.cert)
        assert await served() == second != first
        pair.cert.write_text(first_text)  # a half-finished renewal: no longer the key's
        assert await served() == second
        pair.key.unlink()
        assert await served() == second
        authority.renew()
        assert await served() == der(pair.cert) not in {first, second}
