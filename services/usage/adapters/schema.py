"""The tables. Times are microseconds since 1970, UTC."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", sa.String(64), primary_key=True),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_sha256", sa.String(64), primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False),
    sa.Column("revoked", sa.Boolean, nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
)

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("request_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("owner_epoch", sa.BigInteger, nullable=False),
    sa.Column("tenant_id", sa.String(256), nullable=False),
    sa.Column("model_version", sa.String(256), nullable=False),
    sa.Column("tokenizer_version", sa.String(256), nullable=False),
    sa.Column("adapter", sa.String(256), nullable=False),
    sa.Column("runtime_revision", sa.String(256), nullable=False),
    sa.Column("opened_us", sa.BigInteger, nullable=False),
    sa.Column("finish_reason", sa.SmallInteger, nullable=False),
    sa.Column("input_tokens", sa.Integer, nullable=False),
    sa.Column("cached_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("billable_tokens", sa.Integer, nullable=False),
    sa.Column("queue_ms", sa.Double, nullable=False),
    sa.Column("ttft_ms", sa.Double, nullable=False),
    sa.Column("total_ms", sa.Double, nullable=False),
    sa.Column("closed_us", sa.BigInteger, nullable=True),
    sa.Column("settles_us", sa.BigInteger, nullable=False),
)
sa.Index("ledger_tenant", ledger.c.tenant_id, ledger.c.opened_us, ledger.c.request_id)
_open = ledger.c.closed_us.is_(None)
sa.Index("ledger_open", ledger.c.settles_us, postgresql_where=_open, sqlite_where=_open)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("event_sha256", sa.String(64), primary_key=True),
    sa.Column("reason", sa.String(16), nullable=False),
    sa.Column("request_id", sa.BigInteger, nullable=True),
    sa.Column("event", sa.LargeBinary, nullable=False),
    sa.Column("received_us", sa.BigInteger, nullable=False),
)
