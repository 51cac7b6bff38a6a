"""`tokenloom usage`: read the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tokenloom.cli import ledger, shared

if TYPE_CHECKING:
    from pathlib import Path


@click.command("usage")
@click.option("--request-id", help="One request only.")
@click.option("--from", "start", help="Rows opened at or after this time (RFC 3339).")
@click.option("--to", "end", help="Rows opened before this time (RFC 3339).")
@shared.data_dir_option
def command(request_id: str | None, start: str | None, end: str | None, data_dir: Path) -> None:
    """Print what the caller's requests took, newest first."""
    wanted = {"requestId": request_id, "from": start, "to": end}
    rows = ledger.read(
        shared.find_access(data_dir), {key: value for key, value in wanted.items() if value is not None}
    )
    if not rows:
        click.echo("no rows", err=True)
        return
    ledger.show(rows)
