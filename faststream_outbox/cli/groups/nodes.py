"""`faststream-outbox nodes`: which processes run, what they read and what they hold."""

from typing import Final

import typer

from faststream_outbox.cli.operating.command import Run, operator_command
from faststream_outbox.cli.operating.views import Rows, View, column, number

group = typer.Typer(help="Nodes: the processes that read this outbox.", no_args_is_help=True)

NODES: Final = (
    column("node", "name", whole=True),
    column("alive", colours={True: "green", False: "red"}),
    column("process"),
    column("version", spare=2),
    column("started", "started_at"),
    number("in hand"),
    column("ordering", spare=1),
    column("queues"),
)
NO_NODES: Final = "No process that reads this outbox is connected."
_NO_TABLE: Final = (
    "There is no table of nodes that this role can read: which queues a process reads is not known, and those of other "
    "outboxes of this database are listed, too."
)


@operator_command(group, "list", watch=True)
async def list_nodes(run: Run) -> View:
    """List processes: where they run, whether they are alive, what they read and how much they hold."""
    nodes = await run.operations.nodes()
    unknown = nodes and all(node.queues is None for node in nodes)
    return Rows(NODES, nodes, NO_NODES, notes=[_NO_TABLE] if unknown else [])
