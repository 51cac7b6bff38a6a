"""Tenants, keys, the ledger and its audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.String(64), primary_key=True),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("key_sha256", sa.String(64), primary_key=True),
        sa.Column("tenant_id", sa.String(64), sa.ForeignKey("tenants.tenant_id"), nullable=False),
        sa.Column("revoked", sa.Boolean, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )
    _create_ledger()
    op.create_table(
        "audit",
        sa.Column("event_sha256", sa.String(64), primary_key=True),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("request_id", sa.BigInteger, nullable=True),
        sa.Column("event", sa.LargeBinary, nullable=False),
        sa.Column("received_us", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables."""
    for table in ("audit", "ledger", "api_keys", "tenants"):
        op.drop_table(table)


def _create_ledger() -> None:
    op.create_table(
        "ledger",
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
    op.create_index("ledger_tenant", "ledger", ["tenant_id", "opened_us", "request_id"])
    still_open = sa.text("closed_us IS NULL")
    op.create_index(
        "ledger_open", "ledger", ["settles_us"], postgresql_where=still_open, sqlite_where=still_open
    )
