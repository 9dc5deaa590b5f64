"""The commands of `faststream-outbox`."""

from typing import Annotated

import typer

from faststream_outbox.__about__ import __version__
from faststream_outbox.cli.groups import audit, dlq, keys, messages, nodes, queues, schema, timers
from faststream_outbox.cli.groups.console import console
from faststream_outbox.cli.groups.doctor import doctor
from faststream_outbox.cli.groups.stats import stats
from faststream_outbox.cli.groups.top import top
from faststream_outbox.cli.operating.command import operator_command
from faststream_outbox.cli.relay.command import relay

app = typer.Typer(
    help="The transactional outbox on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options that come before a command."""


app.command(
    context_settings={"allow_extra_args": True},
    epilog="Each option can also be set by a variable, such as OUTBOX_DSN for --dsn, and by a key of the file, such as "
    "on_dead for --on-dead. An option wins over a variable, and a variable over the file.",
)(relay)
for name, module in {
    "queues": queues,
    "messages": messages,
    "keys": keys,
    "dlq": dlq,
    "timers": timers,
    "nodes": nodes,
    "audit": audit,
    "schema": schema,
}.items():
    app.add_typer(module.group, name=name)
operator_command(app, "stats", watch=True)(stats)
operator_command(app, "top")(top)
operator_command(app, "doctor", must_exist=False)(doctor)
operator_command(app, "console")(console)
