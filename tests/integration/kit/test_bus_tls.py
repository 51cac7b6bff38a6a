"""The bus over TLS: nothing is said to a NATS that has not proved itself, and it survives that going away."""

import asyncio
import json

import pytest

from kit import lifecycle
from kit.bus import Bus, BusError
from kit.config import ServiceConfig
from tests.conftest import NatsServer
from tests.support.certificates import Authority

PASSWORD = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def tls(authority):
    return config("tls://127.0.0.1:4222", authority, "usage").nats_tls


def config(url, authority, role):
    pair = authority.pair(role)
    return ServiceConfig(
        nats_url=url, state_dir="/tmp", tls_ca=authority.ca, tls_cert=pair.cert, tls_key=pair.key
    )


@pytest.fixture
def server(tmp_path, authority):
    """A NATS that asks for certificates."""
    pair = authority.pair("nats")
    files = {"cert_file": str(pair.cert), "key_file": str(pair.key), "ca_file": str(authority.ca)}
    document = {
        "authorization": {"user": "u", "password": PASSWORD},
        "tls": {**files, "verify": True, "handshake_first": True},
    }
    (tmp_path / "nats.conf").write_text(json.dumps(document))
    server = NatsServer(tmp_path, "-c", tmp_path / "nats.conf")
    server.start()
    yield server
    server.kill()


def url_of(port):
    return f"tls://u:{PASSWORD}@127.0.0.1:{port}"


async def check_never_connects(url, context):
    connecting = asyncio.create_task(Bus.connect(url, "test", context))
    await asyncio.wait({connecting}, timeout=1.5)
    assert not connecting.done()
    await lifecycle.end(connecting)


async def test_events_are_stored_over_tls_and_again_after_nats_was_away(server, tls, eventually):
    bus = await Bus.connect(url_of(server.port), "test", tls)
    await bus.ensure_stream("EVENTS", ["events.>"], 60.0)
    await bus.publish("events.one", b"1", msg_id="1")
    server.kill()
    await eventually(lambda: not bus.connected)
    with pytest.raises(BusError):
        await bus.publish("events.two", b"2", msg_id="2")
    server.start()
    await eventually(lambda: bus.connected)
    await bus.publish("events.two", b"2", msg_id="2")
    assert (await bus.js.stream_info("EVENTS")).state.messages == 2
    await bus.close()


@pytest.mark.parametrize("wrong", ["authority", "no certificate"])
async def test_nats_and_service_must_both_prove_themselves(server, authority, tmp_path, wrong):
    url = url_of(server.port)
    if wrong == "authority":
        context = config(url, Authority(tmp_path / "other"), "usage").nats_tls
    else:
        context = ServiceConfig(nats_url=url, state_dir="/tmp", nats_ca=authority.ca).nats_tls
    await check_never_connects(url, context)


async def test_a_nats_that_offers_no_tls_never_hears_the_password(tls):
    heard = bytearray()

    async def offer_nothing(reader, writer):
        writer.write(
            b'INFO {"server_id":"x","version":"2.11.0","auth_required":true,"max_payload":1048576}\r\n'
        )
        while chunk := await reader.read(4096):
            heard.extend(chunk)
        writer.close()

    impostor = await asyncio.start_server(offer_nothing, "127.0.0.1", 0)
    port = impostor.sockets[0].getsockname()[1]
    await check_never_connects(url_of(port), tls)
    impostor.close()
    assert heard[:1] == b"\x16"  # the first byte of a TLS handshake
    assert PASSWORD.encode() not in heard
