"""`tokenloom chat`: talk to a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from tokenloom.cli import shared
from tokenloom.cli.streaming import stream, summary

if TYPE_CHECKING:
    from pathlib import Path

Conversation = list[dict[str, str]]


@click.command("chat")
@click.argument("message", required=False)
@click.option("--system", help="The system message; default: the model's own.")
@shared.model_option
@shared.sampling_options
@shared.data_dir_option
def command(
    message: str | None, system: str | None, model: str | None, data_dir: Path, **options: Any
) -> None:
    """Say MESSAGE and print the answer; without one, talk until an empty line or Ctrl-D."""
    talk: Conversation = [{"role": "system", "content": system}] if system else []
    shared.run(_chat(shared.find_access(data_dir), message, talk, model, options))


async def _chat(
    access: shared.Access, message: str | None, talk: Conversation, model: str | None, options: dict[str, Any]
) -> None:
    async with access.client() as client:
        name = await shared.choose_model(client, model)
        said = message or await _ask()
        while said:
            talk.append({"role": "user", "content": said})
            accepted, answer, done = await stream(client, name, talk, options)
            talk.append({"role": "assistant", "content": answer})
            summary(accepted, done)
            said = "" if message else await _ask()


async def _ask() -> str:
    try:
        return (await asyncio.to_thread(input, "> ")).strip()
    except EOFError:
        return ""
