"""The commands of `faststream-outbox`."""

from typing import Annotated

import typer

from faststream_outbox.__about__ import __version__
from faststream_outbox.cli.relay import relay

app = typer.Typer(
    help="The transactional outbox on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(relay)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options that all commands share."""
