"""`tokenloom certs`: make or renew the platform's certificates."""

from __future__ import annotations

from pathlib import Path

import click

from tokenloom import certificates

_DAYS = 365


@click.command("certs")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory for the authority and the certificates; made where it is missing.",
)
@click.option("--days", type=click.IntRange(1, certificates.CA_DAYS), default=_DAYS, show_default=True)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="A name or address at which callers reach the gateway and services NATS; may be repeated.",
)
def command(out: Path, days: int, hosts: tuple[str, ...]) -> None:
    """Write one certificate for each role, signed by an authority that is made on first use and then kept.

    Run it again to renew: services take renewed files for new connections, and need a restart for those they
    make themselves. Without --host the names of the certificates before stay.
    """
    try:
        made = certificates.make(out, days=days, hosts=hosts)
    except certificates.CertificateError as error:
        raise click.ClickException(str(error)) from None
    for path in made:
        click.echo(path)
