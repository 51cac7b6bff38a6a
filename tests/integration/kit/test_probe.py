"""The probe of container health checks, as a container runs it."""

import asyncio
import os
import sys

import pytest

from kit import grpc as kit_grpc
from tests.support.certificates import Authority


@pytest.fixture
async def server():
    server = kit_grpc.Server("127.0.0.1:0")
    server.bound = await server.start([])
    yield server
    await server.stop(0)


async def probe(*arguments, **environment):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kit.probe", *arguments),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_a_server_that_serves_is_healthy(server):
    await server.set_serving("", serving=True)
    assert await probe(server.bound) == (0, "")


async def test_a_server_that_listens_and_does_not_serve_yet_is_not_healthy(server):
    code, said = await probe(server.bound)
    assert code == 1
    assert "NOT_SERVING" in said


async def test_nobody_listening_is_not_healthy(server):
    await server.stop(0)
    code, said = await probe(server.bound)
    assert code == 1
    assert "UNAVAILABLE" in said


async def test_a_server_that_hangs_is_not_healthy():
    async def say_nothing(_reader, writer):
        try:
            await asyncio.sleep(30)
        finally:
            writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    code, said = await probe(f"{host}:{port}")
    silent.close()
    assert code == 1
    assert "DEADLINE_EXCEEDED" in said


async def test_a_wrong_command_line_is_told_apart_from_bad_health():
    assert (await probe())[0] == 2


@pytest.mark.parametrize("public", [False, True], ids=["service", "gateway"])
async def test_a_server_is_asked_for_its_own_certificate_and_no_other(tmp_path, public):
    authority, other = Authority(tmp_path / "own"), Authority(tmp_path / "other")
    settings = authority.settings("gateway" if public else "worker")
    if public:
        edge = authority.pair("edge")
        names = {"TOKENLOOM_PUBLIC_TLS_CERT": edge.cert, "TOKENLOOM_PUBLIC_TLS_KEY": edge.key}
        settings |= {name: str(path) for name, path in names.items()}
    server = kit_grpc.Server("127.0.0.1:0", tls=edge if public else authority.identity("worker"))
    target = await server.start([])
    await server.set_serving("", serving=True)
    try:
        assert await probe(target, **settings) == (0, "")
        for wrong in ({}, other.settings("worker")):
            code, said = await probe(target, **wrong)
            assert (code, "UNAVAILABLE" in said) == (1, True)
    finally:
        await server.stop(0)


async def test_a_certificate_that_cannot_be_read_is_not_healthy(server, tmp_path):
    settings = Authority(tmp_path).settings("worker") | {"TOKENLOOM_TLS_KEY": "/nowhere"}
    code, said = await probe(server.bound, **settings)
    assert code == 1
    assert "certificate cannot be read" in said
