"""`faststream-outbox timers`: messages that wait for their time under a name."""

from functools import partial
from typing import Annotated, Final

import typer

from faststream_outbox.cli.operating.arguments import AUTHOR, PAGE, TIMER_FILTER, Author, PageOptions
from faststream_outbox.cli.operating.command import Run, operator_command
from faststream_outbox.cli.operating.pages import read_pages
from faststream_outbox.cli.operating.values import as_id
from faststream_outbox.cli.operating.views import QUEUE, STATE_COLOURS, Column, Sentence, View, column
from faststream_outbox.operations import MessageFilter

group = typer.Typer(help="Timers: list, cancel, or fire one now.", no_args_is_help=True)

_TIMERS: Final = (
    QUEUE,
    column("timer", "timer_id"),
    column("due", "due_at"),
    column("state", colours=STATE_COLOURS),
    column("key"),
    Column("id", lambda item: as_id(item.id), "right"),
    column("body"),
)
Queue = Annotated[str, typer.Argument(help="The queue of the timer.")]
TimerId = Annotated[str, typer.Argument(help="The name of the timer.")]


@operator_command(group, "list", TIMER_FILTER, PAGE, watch=True)
async def list_timers(run: Run, where: MessageFilter, page: PageOptions) -> View:
    """List timers, and when they are due."""
    return await read_pages(partial(run.operations.timers, where), _TIMERS, page, "No timers.")


@operator_command(group, "cancel", AUTHOR)
async def cancel(run: Run, queue: Queue, timer_id: TimerId, author: Author) -> View:
    """Delete a timer that is not being handled."""
    cancelled = await run.operations.cancel_timer(queue, timer_id, **author.keywords)
    return _done("cancelled", queue, timer_id, done=cancelled)


@operator_command(group, "fire", AUTHOR)
async def fire(run: Run, queue: Queue, timer_id: TimerId, author: Author) -> View:
    """Make a timer due now."""
    fired = await run.operations.fire_timer(queue, timer_id, **author.keywords)
    return _done("fired", queue, timer_id, done=fired)


def _done(past: str, queue: str, timer_id: str, *, done: bool) -> View:
    data = {"action": past, "queue": queue, "timer_id": timer_id, "done": done}
    if done:
        return Sentence(f"{past.capitalize()} the timer {timer_id} of {queue}.", data)
    return Sentence("Nothing was changed: there is no such timer, or it is due already.", data, exit_code=1)
