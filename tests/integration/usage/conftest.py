import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from services.usage.adapters.database import Database


async def fresh_database(server_url: str) -> str:
    """A new, empty database on a PostgreSQL server."""
    name = f"t{uuid.uuid4().hex[:12]}"
    engine = create_async_engine(server_url, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(sa.text(f"CREATE DATABASE {name}"))
    await engine.dispose()
    return sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
async def database_url(request, tmp_path):
    """Every test runs on both."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/usage.db"
    return await fresh_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def database(database_url):
    database = Database(database_url)
    await database.migrate()
    yield database
    await database.close()
