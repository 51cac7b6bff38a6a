"""Runs the migrations on the connection that `adapters.database` gives."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from services.usage.adapters.schema import metadata

_LOCK = 0x746C_6564_6765_7231

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    context.run_migrations()
