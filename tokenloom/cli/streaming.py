"""A generation shown in the terminal, token by token."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import click

from tokenloom.client import Accepted, Done, FinishReason, GenerateOptions, Tokens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from tokenloom.client import Client, Event


async def stream(
    client: Client,
    model: str,
    prompt: str | Sequence[Mapping[str, str]],
    options: Mapping[str, Any],
    **lasting: Any,
) -> tuple[Accepted, str, Done]:
    """Generate and `show`; `lasting` is an idempotency key, and whether to resume."""
    deadline_s = options.get("deadline")
    return await show(
        client.generate(model, prompt, deadline_s=deadline_s, **lasting, **generate_options(options))
    )


async def show(events: AsyncGenerator[Event, None]) -> tuple[Accepted, str, Done]:
    """Print text as it comes; returns the acceptance, the whole text and the terminal record."""
    accepted, done, pieces = Accepted(), Done(), []
    async with aclosing(events):
        async for event in events:
            match event:
                case Accepted():
                    accepted = event
                case Tokens():
                    pieces.append(event.text)
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
                case Done():
                    done = event
    sys.stdout.write("\n")
    return accepted, "".join(pieces), done


def generate_options(given: Mapping[str, Any]) -> GenerateOptions:
    """The SDK's options from the command line's; what was not given stays out."""
    names = {"max_tokens": "max_output_tokens"}
    kept = {names.get(key, key): value for key, value in given.items() if key != "deadline"}
    return cast("GenerateOptions", {key: value for key, value in kept.items() if value is not None})


def summary(accepted: Accepted, done: Done) -> None:
    """Say on stderr how it ended, and what it took."""
    reason = FinishReason.Name(done.finish_reason).removeprefix("FINISH_REASON_").lower()
    cached = f" ({done.cached_tokens} cached)" if done.cached_tokens else ""
    click.secho(
        f"[{reason}; {done.input_tokens} in{cached}, {done.output_tokens} out; first token after "
        f"{done.ttft_ms:.0f} ms, {done.total_ms:.0f} ms in all; {accepted.request_id}]",
        dim=True,
        err=True,
    )
