"""`faststream-outbox audit`: what operators did."""

from functools import partial
from typing import Final

import typer

from faststream_outbox.cli.operating.arguments import PAGE, Bundle, PageOptions, when, which
from faststream_outbox.cli.operating.command import Run, operator_command
from faststream_outbox.cli.operating.pages import read_pages
from faststream_outbox.cli.operating.values import as_id, as_time
from faststream_outbox.cli.operating.views import Column, View, column, number
from faststream_outbox.operations import AuditFilter

group = typer.Typer(help="What operators did, when and why.", no_args_is_help=True)

_ENTRIES: Final = (
    Column("id", lambda item: as_id(item.id), "right"),
    Column("at", lambda item: as_time(item.at)),
    column("by"),
    column("action"),
    number("count"),
    column("target"),
    column("reason"),
)

_FILTER: Final = Bundle(
    "where",
    {
        "who": which(str, "--by", help_="Done by this person."),
        "action": which(str, help_="This action, such as replay."),
        "queue": which(
            str,
            "--queue",
            "-q",
            help_="Done to this queue, one of its keys or timers, or by a filter of it; acts by ids name no queue.",
        ),
        "since": when("Done at this time or later"),
        "before": when("Done before"),
    },
    lambda *, who, since, **values: AuditFilter(by=who, after=since, **values),
)


@operator_command(group, "list", _FILTER, PAGE, watch=True)
async def list_entries(run: Run, where: AuditFilter, page: PageOptions) -> View:
    """List what operators did, the newest first."""
    return await read_pages(partial(run.operations.audit, where), _ENTRIES, page, "Nothing was done.")
