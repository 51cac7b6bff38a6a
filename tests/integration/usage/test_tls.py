"""PostgreSQL over TLS, as its URL asks for it. The server under test has no TLS: a front takes it off."""

import asyncio
import contextlib
import ssl
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa

from kit.config import ConfigError, load
from services.usage.adapters.database import Database, LedgerUnavailable
from services.usage.config import UsageConfig
from tests.support.certificates import Authority

SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certs"))


class Front:
    """Speaks TLS as PostgreSQL does, shows the certificate for `localhost`, and passes on what it hears."""

    def __init__(self, database_url, authority, require_client=False):
        self._dsn = urlsplit(database_url)
        pair = authority.pair("nats")
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca)
        self._context.load_cert_chain(pair.cert, pair.key)
        self._context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_NONE
        self.secured = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self._server.close()

    def url(self, **query):
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        user = self._dsn.netloc.rpartition("@")[0] or "postgres"
        return f"postgresql+asyncpg://{user}@localhost:{self.port}{self._dsn.path}?{asked}"

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            first = await reader.readexactly(8)
            if first == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(self._context)
                self.secured += 1
                first = b""
            await self._pass_on(first, reader, writer)
        writer.close()

    async def _pass_on(self, first, reader, writer):
        socket = parse_qs(self._dsn.query).get("host")
        opened = (
            asyncio.open_unix_connection(f"{socket[0]}/.s.PGSQL.5432")
            if socket
            else asyncio.open_connection(self._dsn.hostname, self._dsn.port)
        )
        there, back = await opened
        back.write(first)
        await asyncio.wait(
            {asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))},
            return_when=asyncio.FIRST_COMPLETED,
        )
        back.close()


async def pump(source, sink):
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()


async def answers(url):
    database = Database(url)
    try:
        async with database.transaction() as connection:
            return (await connection.execute(sa.text("SELECT 1"))).scalar_one() == 1
    finally:
        await database.close()


async def test_a_verified_server_is_used(postgres_url, authority):
    async with Front(postgres_url, authority) as front:
        assert await answers(front.url(sslmode="verify-full", sslrootcert=authority.ca))
        assert front.secured == 1


async def test_a_server_that_does_not_prove_itself_is_not_used(postgres_url, authority, tmp_path):
    other = Authority(tmp_path / "other")
    async with Front(postgres_url, other) as front:
        with pytest.raises(LedgerUnavailable):
            await answers(front.url(sslmode="verify-full", sslrootcert=authority.ca))


async def test_a_client_certificate_is_shown(postgres_url, authority):
    pair = authority.pair("usage")
    verified = {"sslmode": "verify-full", "sslrootcert": authority.ca}
    async with Front(postgres_url, authority, require_client=True) as front:
        with pytest.raises(LedgerUnavailable):
            await answers(front.url(**verified))
        assert await answers(front.url(**verified, sslcert=pair.cert, sslkey=pair.key))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sslmode=verify", "sslmode: allowed are disable, "),
        ("sslmode=verify-full&sslrootcert=/nowhere.pem", "sslrootcert: /nowhere.pem cannot be read"),
        ("sslcert=/etc/cert.pem", "sslcert needs sslkey beside it"),
        ("sslkey=/etc/cert.key", "sslkey needs sslcert beside it"),
        ("sslcert=/nowhere.pem&sslkey=/nowhere.key", "sslcert: /nowhere.pem cannot be read"),
    ],
)
def test_a_url_that_cannot_work_is_refused_by_name(monkeypatch, query, said):
    monkeypatch.setenv("TOKENLOOM_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("TOKENLOOM_STATE_DIR", "/tmp/state")
    monkeypatch.setenv("TOKENLOOM_USAGE_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("TOKENLOOM_DATABASE_URL", f"postgresql://ledger:hidden-word@db/tokenloom?{query}")
    with pytest.raises(ConfigError) as caught:
        load(UsageConfig)
    assert caught.value.message.startswith(f"TOKENLOOM_DATABASE_URL: {said}")
    assert "hidden-word" not in caught.value.message
