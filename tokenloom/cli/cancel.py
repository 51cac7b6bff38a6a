"""`tokenloom cancel`: end a running generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tokenloom.api.inference.v1.inference_pb2 import GenerationState
from tokenloom.cli import shared

if TYPE_CHECKING:
    from pathlib import Path


@click.command("cancel")
@click.argument("request_id")
@shared.data_dir_option
def command(request_id: str, data_dir: Path) -> None:
    """End the generation REQUEST_ID, and say what state it was in."""
    state = shared.run(_cancel(shared.find_access(data_dir), request_id))
    click.echo(GenerationState.Name(state).removeprefix("GENERATION_STATE_").lower())


async def _cancel(access: shared.Access, request_id: str) -> GenerationState:
    async with access.client() as client:
        return await client.cancel(request_id)
