"""`tokenloom generate`: continue a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tokenloom.cli import shared
from tokenloom.cli.streaming import stream, summary

if TYPE_CHECKING:
    from pathlib import Path


@click.command("generate")
@click.argument("prompt")
@shared.model_option
@shared.sampling_options
@shared.data_dir_option
def command(prompt: str, model: str | None, data_dir: Path, **options: Any) -> None:
    """Continue PROMPT and print tokens as they come; Ctrl-C cancels."""
    shared.run(_generate(shared.find_access(data_dir), prompt, model, options))


async def _generate(access: shared.Access, prompt: str, model: str | None, options: dict[str, Any]) -> None:
    async with access.client() as client:
        accepted, _, done = await stream(client, await shared.choose_model(client, model), prompt, options)
    summary(accepted, done)
