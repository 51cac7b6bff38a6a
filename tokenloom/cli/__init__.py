"""The `tokenloom` command: one module a verb, imported when it is called."""

from __future__ import annotations

import importlib

import click

_VERBS = {
    "up": "run the whole platform on this machine",
    "demo": "start everything, stream one chat answer, show its bill, stop",
    "generate": "continue a text",
    "chat": "talk to a model",
    "attach": "follow a generation",
    "cancel": "end a running generation",
    "usage": "read the ledger",
    "models": "import and list models",
    "certs": "make or renew the platform's certificates",
}


class _Verbs(click.Group):
    """Imports a verb's module only to run it: `tokenloom cancel` needs nothing of `tokenloom up`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every verb, in the order of the help text."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command."""
        if cmd_name not in _VERBS:
            return None
        command: click.Command = importlib.import_module(f"tokenloom.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a verb; text in the caller's encoding that is no Unicode becomes one line."""
        try:
            return super().invoke(ctx)
        except UnicodeEncodeError as error:
            message = f"there is text that {error.encoding} cannot express: {error.reason}"
            raise click.ClickException(message) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tokenloom")
def main() -> None:
    """Tokenloom: an LLM inference platform on one machine or many."""
