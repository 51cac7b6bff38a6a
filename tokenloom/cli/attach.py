"""`tokenloom attach`: follow a generation that was started elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tokenloom.cli import shared
from tokenloom.cli.streaming import show, summary

if TYPE_CHECKING:
    from pathlib import Path


@click.command("attach")
@click.argument("request_id")
@click.option("--from", "start", type=click.IntRange(0, 2**31 - 1), default=0, help="First token wanted.")
@shared.data_dir_option
def command(request_id: str, start: int, data_dir: Path) -> None:
    """Follow the generation REQUEST_ID, or key:KEY, running or finished, and print its tokens."""
    shared.run(_attach(shared.find_access(data_dir), request_id, start))


async def _attach(access: shared.Access, request_id: str, start: int) -> None:
    async with access.client() as client:
        accepted, _, done = await show(client.attach(request_id, start))
    summary(accepted, done)
