"""`faststream-outbox queues`: what waits in each queue, and pausing one."""

from datetime import datetime
from typing import Annotated, Final

import typer

from faststream_outbox.cli.operating.arguments import AUTHOR, Author, future_time
from faststream_outbox.cli.operating.command import Run, operator_command
from faststream_outbox.cli.operating.values import as_time
from faststream_outbox.cli.operating.views import QUEUE, Column, Rows, Sentence, View, number
from faststream_outbox.operations import Pause, QueueOverview

group = typer.Typer(help="Queues: what waits in them, pause and resume.", no_args_is_help=True)


def _paused(queue: QueueOverview) -> str | None:
    pause = queue.paused
    if pause is None:
        return None
    until = "" if pause.until is None else f" until {as_time(pause.until)}"
    return f"by {pause.by}{until}: {pause.reason}"


QUEUES: Final = (
    QUEUE,
    number("ready"),
    number("scheduled", rare=True),
    number("in flight"),
    number("expired", colour="red", rare=True),
    number("blocked keys", colour="yellow", rare=True),
    number("parked keys", colour="red", rare=True),
    number("dead", colour="red", rare=True),
    number("oldest", "oldest_claimable_age"),
    number("nodes"),
    Column("paused", _paused, colour="yellow"),
)
Queue = Annotated[str, typer.Argument(help="The queue.")]


@operator_command(group, "list", watch=True)
async def list_queues(run: Run) -> View:
    """List queues: what is ready, scheduled, in flight, expired, blocked and dead, and which are paused."""
    return Rows(QUEUES, await run.operations.queues(), "The outbox is empty, and nothing is paused.")


@operator_command(group, "pause", AUTHOR)
async def pause(
    run: Run,
    queue: Queue,
    author: Author,
    *,
    until: Annotated[
        datetime | None,
        typer.Option(
            help="When it goes on by itself: a time, or how long from now (2h); by default when it is resumed.",
            parser=future_time,
            metavar="TIME",
        ),
    ] = None,
) -> View:
    """Stop handling a queue in all processes, until it is resumed; what runs ends, and publishing goes on."""
    paused = await run.operations.pause(queue, until, **author.keywords)
    end = "it is resumed" if paused.until is None else as_time(paused.until)
    data = {"action": "pause", "done": True, **_fields(paused)}
    found = await run.operations.queue(queue)
    notes = [_UNKNOWN.format(queue=queue)] if found is not None and _is_unknown(found) else []
    return Sentence(f"Paused the queue {queue} until {end}.", data, notes=notes)


# A name that was misspelled is paused too, and the queue that was meant goes on.
_UNKNOWN: Final = "No message is in {queue}, and no living process reads it: is the name right?"


def _is_unknown(queue: QueueOverview) -> bool:
    counts = (queue.ready, queue.scheduled, queue.in_flight, queue.expired, queue.blocked, queue.dead)
    return queue.nodes == 0 and not any(count.number for count in counts)


@operator_command(group, "resume", AUTHOR)
async def resume(run: Run, queue: Queue, author: Author) -> View:
    """Handle a paused queue again."""
    resumed = await run.operations.resume(queue, **author.keywords)
    data = {"action": "resume", "queue": queue, "done": resumed}
    if resumed:
        return Sentence(f"Resumed the queue {queue}.", data)
    return Sentence(f"Nothing was changed: the queue {queue} is not paused.", data, exit_code=1)


def _fields(paused: Pause) -> dict[str, object]:
    return {"queue": paused.queue, "until": paused.until, "by": paused.by, "reason": paused.reason}
