"""What the verbs share: where the platform listens, and errors as one clear line."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tokenloom.client import Client, TokenloomError
from tokenloom.connection import other_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

DEFAULT_DATA_DIR = Path(".tokenloom")
INTERRUPTED = 130
T = TypeVar("T")

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Directory of a platform started with `tokenloom up`.",
)
model_option = click.option("--model", help="Model name or name@version; default: the only one served.")


@dataclass(frozen=True, slots=True)
class Access:
    """Where the platform listens, the key to it, and who vouches for it where it speaks TLS."""

    http_url: str
    grpc_target: str
    api_key: str
    ca: str | None = None
    others: tuple[str, ...] = ()

    def client(self) -> Client:
        """The SDK, connected there."""
        try:
            return Client(self.grpc_target, self.api_key, others=self.others, ca=self.ca)
        except OSError as error:
            raise click.ClickException(f"TOKENLOOM_CA: {self.ca} cannot be read: {error.strerror}") from None


def find_access(data_dir: Path) -> Access:
    """Read TOKENLOOM_* from the environment, and what is missing there from the data directory."""
    path = data_dir / "dev.env"
    lines = path.read_text().splitlines() if path.exists() else []
    known = {**dict(line.split("=", 1) for line in lines if "=" in line), **os.environ}
    names = ("TOKENLOOM_HTTP_URL", "TOKENLOOM_GRPC_TARGET", "TOKENLOOM_API_KEY")
    if missing := [name for name in names if not known.get(name)]:
        raise click.ClickException(
            f"no platform runs on {data_dir} (start one with `tokenloom up --data-dir {data_dir}`), "
            f"and the environment lacks {', '.join(missing)}"
        )
    url, target, key = (known[name] for name in names)
    return Access(url, target, key, known.get("TOKENLOOM_CA"), tuple(other_targets(known)))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a verb; what the platform refuses becomes one line, and Ctrl-C a silent end."""
    try:
        return asyncio.run(_interruptible(work))
    except TokenloomError as error:
        hint = f" (try again in {error.retry_after:.1f} s)" if error.retry_after else ""
        field = f" [{error.field}]" if error.field else ""
        raise click.ClickException(f"{error}{field}{hint}") from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(INTERRUPTED) from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    # Python's own handler does not wake a loop that is just falling asleep.
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    return await task


async def choose_model(client: Client, wanted: str | None) -> str:
    """The wanted model, or the only one served."""
    if wanted:
        return wanted
    names = [model.name for model in await client.list_models()]
    if len(names) == 1:
        return names[0]
    served = ", ".join(names) or "none"
    raise click.ClickException(f"choose one with --model; served: {served}")


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how to generate."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


_SAMPLING = (
    click.option("--max-tokens", type=click.IntRange(min=1, max=2**31 - 1), help="Most tokens to generate."),
    click.option("--temperature", type=click.FloatRange(0, 2), help="0 is greedy."),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Nucleus mass."),
    click.option("--top-k", type=click.IntRange(0, 2**31 - 1), help="Likeliest tokens kept; 0 keeps all."),
    click.option("--min-p", type=click.FloatRange(0, 1), help="Least share of the likeliest's probability."),
    click.option("--seed", type=click.IntRange(-(2**63), 2**63 - 1), help="Seed of the sampling noise."),
    click.option("--stop", multiple=True, help="Text that ends the output; may be repeated."),
    click.option("--deadline", type=click.FloatRange(0, min_open=True), help="Seconds until it must end."),
)
