import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kit import grpc as kit_grpc
from kit.errors import Code, ServiceError, invalid

PROMPT = "attack at dawn"
PARSE = health_pb2.HealthCheckRequest.FromString
UNREADABLE = {"no proto": b"\xff\xff", "no UTF-8": b"\x0a\x01\xff"}


class Behaviours:
    """Unary and streaming handlers that do what the test says, over plain bytes."""

    def __init__(self):
        self.action = None
        self.cleaned = asyncio.Event()

    async def unary(self, request, context):
        await self.action()
        return request

    async def stream(self, request, context):
        try:
            yield b"first"
            await self.action()
            yield b"last"
        finally:
            self.cleaned.set()

    def handler(self):
        return grpc.method_handlers_generic_handler(
            "test.Echo",
            {
                "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
                "Parsed": grpc.unary_unary_rpc_method_handler(self.unary, PARSE),
                "ParsedStream": grpc.unary_stream_rpc_method_handler(self.stream, PARSE),
                "Stream": grpc.unary_stream_rpc_method_handler(self.stream),
            },
        )


@pytest.fixture
async def echo():
    behaviours = Behaviours()
    server = kit_grpc.Server("127.0.0.1:0")
    server.aio.add_generic_rpc_handlers((behaviours.handler(),))
    behaviours.target = await server.start(["test.Echo"])
    async with kit_grpc.channel(behaviours.target) as channel:
        behaviours.channel = channel
        behaviours.server = server
        yield behaviours
    await server.stop(0)


def raising(error):
    async def action():
        raise error

    return action


REFUSALS = [
    invalid("max_output_tokens", "allowed: 1 to 512", "CONTEXT_TOO_LONG"),
    ServiceError(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", "the queue is full", retry_after_ms=1250),
    *(ServiceError(code, "REASON", "message") for code in Code),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: r.code.name)
async def test_a_refusal_makes_the_round_trip_whole(echo, refusal):
    echo.action = raising(refusal)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await echo.channel.unary_unary("/test.Echo/Unary")(b"", timeout=5)
    assert failure.value.code().name == refusal.code.name
    assert kit_grpc.service_error(failure.value) == refusal


async def test_a_refusal_in_mid_stream_comes_after_what_was_sent(echo):
    echo.action = raising(ServiceError(Code.UNAVAILABLE, "DRAINING", "the service stops"))
    call = echo.channel.unary_stream("/test.Echo/Stream")(b"", timeout=5)
    assert await call.read() == b"first"
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    assert kit_grpc.service_error(failure.value).reason == "DRAINING"


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("method", ["Parsed", "ParsedStream"])
async def test_a_message_that_cannot_be_read_is_the_callers_fault(echo, method, raw):
    make = echo.channel.unary_unary if method == "Parsed" else echo.channel.unary_stream
    call = make(f"/test.Echo/{method}")(raw, timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await (call if method == "Parsed" else call.read())
    refusal = kit_grpc.service_error(failure.value)
    assert (refusal.code, refusal.field) == (Code.INVALID_ARGUMENT, "request")


async def test_a_message_that_quotes_a_huge_input_still_fits_the_headers(echo):
    echo.action = raising(invalid("stop", "\N{PILE OF POO}" * 1_000_000))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await echo.channel.unary_unary("/test.Echo/Unary")(b"", timeout=5)
    refusal = kit_grpc.service_error(failure.value)
    assert (refusal.code, refusal.field) == (Code.INVALID_ARGUMENT, "stop")


async def test_an_unexpected_error_is_internal_and_its_log_quotes_no_prompt(echo, capfd):
    async def action():
        try:
            int(PROMPT)
        except ValueError as error:
            raise RuntimeError(PROMPT) from error

    echo.action = action
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await echo.channel.unary_unary("/test.Echo/Unary")(b"", timeout=5)
    refusal = kit_grpc.service_error(failure.value)
    assert (refusal.code, refusal.reason) == (Code.INTERNAL, "INTERNAL")
    logged = "".join(capfd.readouterr())
    assert "RuntimeError" in logged
    assert "ValueError" in logged
    assert "test_grpc.py" in logged
    assert PROMPT not in logged + refusal.message


@pytest.mark.parametrize("method", ["Unary", "Stream"])
async def test_a_cancelled_error_that_escapes_a_handler_does_not_hang_its_client(echo, method):
    async def action():
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    echo.action = action
    make = echo.channel.unary_unary if method == "Unary" else echo.channel.unary_stream
    call = make(f"/test.Echo/{method}")(b"")
    if method == "Stream":
        assert await call.read() == b"first"
    code = await asyncio.wait_for(call.code(), 5)
    assert code is grpc.StatusCode.INTERNAL


async def test_a_client_that_leaves_runs_the_handlers_clean_up(echo):
    echo.action = lambda: asyncio.sleep(60)
    call = echo.channel.unary_stream("/test.Echo/Stream")(b"")
    assert await call.read() == b"first"
    call.cancel()
    await asyncio.wait_for(echo.cleaned.wait(), 5)


async def test_keepalive_pings_in_a_long_prefill_bring_no_goaway(monkeypatch):
    """Each side is set, and the server's least period lies below the client's."""
    seen = {}

    def recording(kind, make):
        def made(*args, options, **rest):
            seen[kind] = dict(options)
            return make(*args, options=options, **rest)

        return made

    for kind, name in (("server", "server"), ("client", "insecure_channel")):
        monkeypatch.setattr(grpc.aio, name, recording(kind, getattr(grpc.aio, name)))
    kit_grpc.Server("127.0.0.1:0")
    await kit_grpc.channel("127.0.0.1:1").close()
    least_ms = seen["server"]["grpc.http2.min_recv_ping_interval_without_data_ms"]
    for side in ("server", "client"):
        assert seen[side]["grpc.keepalive_time_ms"] > least_ms
        assert seen[side]["grpc.keepalive_permit_without_calls"] == 1
    assert seen["client"]["grpc.http2.max_pings_without_data"] == 0


async def test_a_message_over_the_limit_is_refused_and_the_server_lives(echo):
    echo.action = lambda: asyncio.sleep(0)
    unary = echo.channel.unary_unary("/test.Echo/Unary")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await unary(bytes(kit_grpc.MESSAGE_BYTES + 1), timeout=5)
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await unary(b"small", timeout=5) == b"small"


async def test_a_second_server_cannot_bind_the_same_port_in_silence(echo):
    with pytest.raises(RuntimeError, match="bind"):
        await kit_grpc.Server(echo.target).start([])


async def test_health_is_not_serving_until_said_so(echo):
    stub = health_pb2_grpc.HealthStub(echo.channel)
    serving = health_pb2.HealthCheckResponse
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == serving.NOT_SERVING
    await echo.server.set_serving("", True)
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == serving.SERVING
    named = health_pb2.HealthCheckRequest(service="test.Echo")
    assert (await stub.Check(named)).status == serving.NOT_SERVING


async def test_a_unix_socket_is_a_target_like_any_other(tmp_path):
    behaviours = Behaviours()
    behaviours.action = lambda: asyncio.sleep(0)
    server = kit_grpc.Server(f"unix:{tmp_path}/echo.sock")
    server.aio.add_generic_rpc_handlers((behaviours.handler(),))
    target = await server.start(["test.Echo"])
    async with kit_grpc.channel(target) as channel:
        assert await channel.unary_unary("/test.Echo/Unary")(b"x", timeout=5) == b"x"
    await server.stop(0)


async def test_a_channel_is_back_within_seconds_of_its_server(echo):
    echo.action = lambda: asyncio.sleep(0)
    unary = echo.channel.unary_unary("/test.Echo/Unary")
    assert await unary(b"x", timeout=5) == b"x"
    await echo.server.stop(0)
    with pytest.raises(grpc.aio.AioRpcError):
        await unary(b"x", timeout=0.5)
    again = kit_grpc.Server(echo.target)
    again.aio.add_generic_rpc_handlers((echo.handler(),))
    await again.start([])
    assert await unary(b"x", timeout=5, wait_for_ready=True) == b"x"
    await again.stop(0)
