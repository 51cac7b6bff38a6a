"""`tokenloom up`: run the whole platform on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from tokenloom.cli.models import models_dir_option
from tokenloom.up.options import DEFAULT_DATA_DIR, DEFAULT_MODEL, Options, UpError
from tokenloom.up.run import run

_PORT = click.IntRange(0, 65535)


@click.command("up")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Where everything is kept.",
)
@click.option("--http-port", type=_PORT, default=0, help="Of the first gateway; 0 picks a free one.")
@click.option("--grpc-port", type=_PORT, default=0, help="Of the first gateway; 0 picks a free one.")
@click.option("--gateways", type=click.IntRange(1, 32), default=1, show_default=True)
@click.option("--workers", type=click.IntRange(1, 32), default=1, show_default=True, help="Of each model.")
@click.option(
    "--model",
    "served",
    multiple=True,
    default=(DEFAULT_MODEL,),
    show_default=True,
    help="Name of a model to serve; give it again for another.",
)
@click.option("--nats-url", envvar="TOKENLOOM_NATS_URL", help="Use this NATS instead of starting one.")
@click.option("--database-url", envvar="TOKENLOOM_DATABASE_URL", help="Keep the ledger there.")
@click.option(
    "--tls",
    is_flag=True,
    envvar="TOKENLOOM_TLS",
    help="Mutual TLS between services, TLS for callers; certificates are made in DATA_DIR/certs.",
)
@models_dir_option
def command(**options: Any) -> None:
    """Run the platform in the foreground; Ctrl-C drains it.

    Once every service serves, one line starting with `ready` gives the HTTP URL, the gRPC target and a
    development API key; DATA_DIR/dev.env holds the three for scripts, and with --tls the authority to trust.
    """
    try:
        asyncio.run(run(Options(**options)))
    except UpError as error:
        raise click.ClickException(str(error)) from None
