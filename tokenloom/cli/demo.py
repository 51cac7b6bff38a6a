"""`tokenloom demo`: the whole platform once through, from nothing to a bill."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import click

from tokenloom.cli import ledger, shared
from tokenloom.cli.streaming import stream, summary
from tokenloom.up import files
from tokenloom.up.console import Console
from tokenloom.up.options import DEFAULT_DATA_DIR, Options, UpError
from tokenloom.up.platform import Platform
from tokenloom.up.run import until_signal

QUESTION = "What is the capital of France, and what is it known for?"
_LEDGER_WAIT_S = 15.0
_LOG = "demo.log"


@click.command("demo")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Where everything is kept; a second run starts from it.",
)
def command(data_dir: Path) -> None:
    """Start every service, stream one chat answer, print its ledger row, stop everything."""
    try:
        finished = shared.run(_run(Options(data_dir)))
    except UpError as error:
        for line in _last_lines(data_dir / _LOG):
            click.echo(line, err=True)
        raise click.ClickException(str(error)) from None
    if not finished:
        raise SystemExit(shared.INTERRUPTED)


async def _run(options: Options) -> bool:
    with files.exclusive(options.data_dir), (options.data_dir / _LOG).open("w") as log:
        console = Console(sys.stderr, services=log)
        console.event(f"starting; the services' own lines go to {log.name}")
        return await until_signal(_demo(options, console))


async def _demo(options: Options, console: Console) -> None:
    started = time.monotonic()
    async with Platform(options, console) as platform:
        console.event(f"all services serve after {time.monotonic() - started:.1f} s")
        first = platform.endpoints[0]
        access = shared.Access(first.http_url, first.grpc_target, platform.api_key)
        click.secho(f"\n> {QUESTION}\n", bold=True)
        async with access.client() as client:
            talk = [{"role": "user", "content": QUESTION}]
            limits = {"max_tokens": 96, "temperature": 0.0}
            accepted, _, done = await stream(client, options.served[0], talk, limits)
        summary(accepted, done)
        click.secho("\nIts row in the ledger:\n", bold=True)
        ledger.show([await _closed_row(access, accepted.request_id)])
        click.echo()


def _last_lines(path: Path, count: int = 20) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-count:] if path.exists() else []


async def _closed_row(access: shared.Access, request_id: str) -> ledger.Row:
    """The usage event takes a moment to reach the ledger."""
    until = time.monotonic() + _LEDGER_WAIT_S
    while True:
        rows = await asyncio.to_thread(ledger.read, access, {"requestId": request_id})
        if rows and rows[0].get("finishReason"):
            return rows[0]
        if time.monotonic() > until:
            raise click.ClickException(f"the ledger has no closed row of {request_id}")
        await asyncio.sleep(0.1)
