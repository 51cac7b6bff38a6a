"""The database: engine, migrations, and the one error that a database which is away becomes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
from alembic import command
from alembic.config import Config
from asyncpg import exceptions as asyncpg_errors
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from kit.errors import Code, ServiceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Connection

_connect: Any = asyncpg.connect
# A connection that cannot be made fails with the driver's own errors.
_FAILURES = (SQLAlchemyError, OSError, asyncpg_errors.PostgresError, asyncpg_errors.InterfaceError)


class LedgerUnavailable(ServiceError):  # noqa: N818
    """The database cannot be reached or refused."""


class Database:
    """Transactions on SQLite or PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)

    async def migrate(self) -> None:
        """Bring the schema to this version; safe when several processes start at once."""
        async with self.engine.begin() as connection:
            await connection.run_sync(_upgrade)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Commit at the end, roll back on an error; `LedgerUnavailable` when the database fails."""
        try:
            async with self.engine.begin() as connection:
                yield connection
        except _FAILURES as error:
            # Statements and parameters stay out of what a caller or the log sees.
            cause = getattr(error, "orig", None) or error
            message = f"the ledger database failed: {type(cause).__name__}"
            raise LedgerUnavailable(
                Code.UNAVAILABLE, "LEDGER_UNAVAILABLE", message, retry_after_ms=1000
            ) from error

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()


def _engine(url: str) -> AsyncEngine:
    if not url.startswith("sqlite"):
        # The driver reads the URL itself: sslmode, sslrootcert, sslcert and sslkey mean what libpq means.
        dsn = url.replace("postgresql+asyncpg://", "postgresql://", 1)
        return create_async_engine(
            url,
            async_creator=partial(_connect, dsn),
            pool_size=4,
            pool_pre_ping=True,
            hide_parameters=True,
        )
    engine = create_async_engine(url, hide_parameters=True)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    # An acknowledged event must survive a power cut, hence FULL.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "services.usage:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
