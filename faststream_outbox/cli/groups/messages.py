"""`faststream-outbox messages`: what waits in the outbox, or is being handled."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

import typer

from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.operating.acts import Verb, act
from faststream_outbox.cli.operating.arguments import MESSAGE_FILTER, ORDER, PAGE, Order, PageOptions
from faststream_outbox.cli.operating.command import Run, operator_command
from faststream_outbox.cli.operating.output import Format
from faststream_outbox.cli.operating.pages import read_pages
from faststream_outbox.cli.operating.rows import DEAD_LETTERS, MESSAGES, no_message, show_message
from faststream_outbox.cli.operating.values import as_cell, as_id, as_time
from faststream_outbox.cli.operating.views import Rows, View, Views
from faststream_outbox.operations import MessageFilter

group = typer.Typer(help="Messages that wait in the outbox, or are being handled.", no_args_is_help=True)

_DELIVER: Final = Verb("deliver", "made due", "message", "now")
_DISCARD: Final = Verb("discard", "discarded", "message")
_MOVE: Final = Verb("move", "moved", "message")
Id = Annotated[int, typer.Argument(help="The id of the message.")]
Raw = Annotated[bool, typer.Option("--raw", help="Write the bytes of the body as they are, and nothing else.")]


@operator_command(group, "list", MESSAGE_FILTER, PAGE, watch=True)
async def list_messages(run: Run, where: MessageFilter, page: PageOptions) -> View:
    """List messages: their state, when they are due, who holds them, why they failed last."""
    return await read_pages(partial(run.operations.messages, where), MESSAGES, page, "No messages.")


@operator_command(group, "show")
async def show(run: Run, message_id: Id, *, raw: Raw = False) -> View | None:
    """Show one message: its headers, its body decoded, its attempts, who holds it."""
    message = await run.operations.message(message_id)
    if message is None:
        raise ProgramError(no_message(message_id))
    if raw:
        run.output.raw(message.body.raw)
        return None
    return show_message(message)


@operator_command(group, "find")
async def find(
    run: Run,
    *,
    correlation_id: Annotated[str, typer.Option(help="The correlation id.")],
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many of each.", min=1)] = 100,
) -> View:
    """Find what has a correlation id, in the outbox and in the dead letters."""
    found = await run.operations.find(correlation_id=correlation_id, limit=limit)
    nothing = not found.messages and not found.dead_letters
    return Views(
        {
            "messages": Rows(MESSAGES, found.messages, "None.", "Messages:"),
            "dead_letters": Rows(DEAD_LETTERS, found.dead_letters, "None.", "Dead letters:"),
        },
        notes=[] if found.complete else ["The search stopped before the end of the tables: there may be more."],
        exit_code=1 if nothing else 0,
    )


@operator_command(group, "tail")
async def tail(run: Run, queue: Annotated[str | None, typer.Argument(help="Of this queue only.")] = None) -> None:
    """Show new messages as they are committed, until Ctrl-C."""
    with suppress(asyncio.CancelledError):
        async for message in run.operations.tail(queue):
            if run.output.form is Format.TABLE:
                line = (as_time(message.published_at), as_id(message.id), message.queue, message.key, message.body)
                run.output.text("  ".join(map(as_cell, line)))
            else:
                run.output.line(message)


@operator_command(group, "deliver-now", MESSAGE_FILTER, ORDER)
async def deliver_now(run: Run, where: MessageFilter, order: Order) -> View:
    """Make messages due now that wait for a retry or for their time."""
    return await act(run, _DELIVER, order, where, run.operations.deliver_now)


@operator_command(group, "discard", MESSAGE_FILTER, ORDER)
async def discard(run: Run, where: MessageFilter, order: Order) -> View:
    """Delete messages for good, without delivering them."""
    return await act(run, _DISCARD, order, where, run.operations.discard)


@operator_command(group, "move", MESSAGE_FILTER, ORDER)
async def move(
    run: Run, where: MessageFilter, order: Order, *, to: Annotated[str, typer.Option(help="The queue to move them to.")]
) -> View:
    """Move messages to another queue."""
    return await act(run, _MOVE, order, where, partial(run.operations.move, queue=to))
