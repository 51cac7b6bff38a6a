"""The caller's rows of the ledger, read over HTTP."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from tokenloom.connection import PUBLICLY_TRUSTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenloom.cli.shared import Access

Row = dict[str, Any]
_TIMEOUT_S = 30.0
_COLUMNS = {
    "requestId": "request",
    "modelVersion": "model",
    "inputTokens": "input",
    "cachedTokens": "cached",
    "outputTokens": "output",
    "billableTokens": "billable",
    "finishReason": "finish",
    "ttftMs": "ttft ms",
    "totalMs": "total ms",
    "openedTime": "opened",
    "state": "state",
}


def read(access: Access, query: Mapping[str, str]) -> list[Row]:
    """The rows that match, newest first."""
    request = urllib.request.Request(  # noqa: S310 - the operator's own URL
        f"{access.http_url}/v1/usage?{urllib.parse.urlencode(query)}",
        headers={"Authorization": f"Bearer {access.api_key}"},
    )
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    try:
        if access.ca:
            handlers.append(urllib.request.HTTPSHandler(context=_trusting(access.ca)))
        opener = urllib.request.build_opener(*handlers)
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            rows: list[Row] = json.load(response)["data"]
            return rows
    except urllib.error.HTTPError as error:
        raise click.ClickException(_refusal(error)) from None
    except OSError as error:
        raise click.ClickException(f"{access.http_url} cannot be reached: {error}") from None


def show(rows: Sequence[Row]) -> None:
    """Print a table: as wide as its content where no terminal limits it."""
    table = Table(box=None, pad_edge=False)
    for title in _COLUMNS.values():
        table.add_column(title, no_wrap=True, justify="right" if title.endswith(("put", "ms")) else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in _COLUMNS))
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)
    console.print(table)


def _trusting(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=None if ca == PUBLICLY_TRUSTED else ca)


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        body = json.load(error)["error"]
        return f"{body['reason']}: {body['message']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {error.reason}"
