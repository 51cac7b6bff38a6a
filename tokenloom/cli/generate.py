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
@click.option("--idempotency-key", "key", help="Names the generation: the same again follows the first.")
@click.option("--resume", is_flag=True, help="Survive the loss of a worker, and of this command for a while.")
@shared.data_dir_option
def command(
    prompt: str, model: str | None, key: str | None, resume: bool, data_dir: Path, **options: Any
) -> None:
    """Continue PROMPT and print tokens as they come; Ctrl-C cancels, unless it has a key or may resume."""
    lasting = {"idempotency_key": key, "resume": resume}
    shared.run(_generate(shared.find_access(data_dir), prompt, model, lasting, options))


async def _generate(
    access: shared.Access, prompt: str, model: str | None, lasting: dict[str, Any], options: dict[str, Any]
) -> None:
    async with access.client() as client:
        name = await shared.choose_model(client, model)
        accepted, _, done = await stream(client, name, prompt, options, **lasting)
    summary(accepted, done)
