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
from faststream_outbox.storage.operating.acts import IN_FLIGHT, LOCKED, WHY_NOT_NOW

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
    return await _done(run, "cancelled", queue, timer_id, done=cancelled)


@operator_command(group, "fire", AUTHOR)
async def fire(run: Run, queue: Queue, timer_id: TimerId, author: Author) -> View:
    """Make a timer due now."""
    fired = await run.operations.fire_timer(queue, timer_id, **author.keywords)
    return await _done(run, "fired", queue, timer_id, done=fired)


async def _done(run: Run, past: str, queue: str, timer_id: str, *, done: bool) -> View:
    """Return what became of a timer; if nothing was changed, why, and the exit code 1."""
    data = {"action": past, "queue": queue, "timer_id": timer_id, "done": done}
    if done:
        return Sentence(f"{past.capitalize()} the timer {timer_id} of {queue}.", data)
    why = await _why_not(run, past, queue, timer_id)
    return Sentence(f"Nothing was changed: {why}.", data | {"why": why}, exit_code=1)


async def _why_not(run: Run, past: str, queue: str, timer_id: str) -> str:
    """Return why an act left a timer alone, as far as the timer still shows it."""
    found = (await run.operations.timers(MessageFilter(queue=queue, timer_id=timer_id), limit=1)).items
    if not found:
        return f"there is no timer {timer_id} in queue {queue}"
    state = found[0].state
    if state == "in_flight":
        return IN_FLIGHT
    if past == "cancelled":
        return LOCKED
    # A message that waits for others of its key is due, too.
    return WHY_NOT_NOW.get("ready" if state == "blocked" else state, LOCKED)
