"""`faststream-outbox keys`: keys whose messages wait, and what waits behind the first of them."""

from functools import partial
from typing import Annotated, Any, Final

import typer

from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.operating.arguments import AUTHOR, PAGE, Author, PageOptions
from faststream_outbox.cli.operating.command import Run, operator_command
from faststream_outbox.cli.operating.pages import read_pages
from faststream_outbox.cli.operating.rows import MESSAGES
from faststream_outbox.cli.operating.views import (
    QUEUE,
    STATE_COLOURS,
    Record,
    Rows,
    Sentence,
    View,
    Views,
    column,
    number,
)

group = typer.Typer(help="Keys that wait: what blocks them, and how they go on.", no_args_is_help=True)

_KEYS: Final = (
    QUEUE,
    column("key"),
    column("state", colours=STATE_COLOURS),
    number("attempts", spare=1),
    number("waiting"),
    number("for", "age"),
    number("due in", spare=2),
    column("cause"),
)
Queue = Annotated[str, typer.Argument(help="The queue of the key.")]
Key = Annotated[str, typer.Argument(help="The key.")]
Head = Annotated[
    int | None,
    typer.Option(min=1, metavar="ID", help="Only if this message is still the first.", rich_help_panel="The act"),
]


@operator_command(group, "list", PAGE, watch=True)
async def list_keys(
    run: Run,
    page: PageOptions,
    *,
    state: Annotated[
        str | None, typer.Option(help="In this state: retrying, delayed, parked, expired or in_flight.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Of this queue.")] = None,
) -> View:
    """List keys that wait: why, since when, and how many messages wait behind the first."""
    read = partial(run.operations.keys, state, queue=queue)  # type: ignore[arg-type]  # the core checks it
    return await read_pages(read, _KEYS, page, "No key waits.")


@operator_command(group, "show")
async def show(run: Run, queue: Queue, key: Key) -> View:
    """Show one key: what its first message waits for, and the messages behind it."""
    found = await run.operations.key(queue, key)
    if found is None:
        raise ProgramError(f"No message of queue {queue} has the key {key}.")
    fields: dict[str, Any] = {"queue": queue, "key": key, "state": found.state, "waiting": found.waiting}
    texts = dict[str, str]()
    if (blocked := found.blocked) is not None:
        fields |= {"cause": blocked.cause, "for": blocked.age, "due in": blocked.due_in}
        # What an operator gave as the reason is the cause already.
        if blocked.exception and blocked.exception not in blocked.cause:
            texts = {"exception": blocked.exception}
    messages = Rows(MESSAGES, found.messages, title="Messages:")
    return Views({"key": Record(found, fields, texts), "messages": messages}, found)


@operator_command(group, "retry", AUTHOR)
async def retry(run: Run, queue: Queue, key: Key, author: Author, *, head: Head = None) -> View:
    """Make the first message of a key due now; a parked one gets all its attempts again."""
    result = await run.operations.retry_key(queue, key, head=head, **author.keywords)
    return await _done(run, "retried", queue, key, result, head=head)


@operator_command(group, "skip", AUTHOR)
async def skip(run: Run, queue: Queue, key: Key, author: Author, *, head: Head = None) -> View:
    """Dead-letter the first message of a key; the key goes on with the next. Without a dead-letter table: delete it."""
    result = await run.operations.skip_key(queue, key, head=head, **author.keywords)
    then = (
        "its first message is a dead letter now"
        if run.operations.has_dead_letters
        else "its first message is deleted for good, because there is no dead-letter table"
    )
    return await _done(run, "skipped", queue, key, result, head=head, then=f": {then}")


@operator_command(group, "park", AUTHOR)
async def park(run: Run, queue: Queue, key: Key, author: Author) -> View:
    """Stop a key at its first message, until it is released, retried or skipped."""
    return await _done(run, "parked", queue, key, await run.operations.park_key(queue, key, **author.keywords))


@operator_command(group, "hold", AUTHOR)
async def hold(run: Run, queue: Queue, key: Key, author: Author) -> View:
    """Stop a key, also one without messages: those that come wait until it is released."""
    return await _done(run, "held", queue, key, await run.operations.hold_key(queue, key, **author.keywords))


@operator_command(group, "release", AUTHOR)
async def release(run: Run, queue: Queue, key: Key, author: Author) -> View:
    """Undo a park or a hold: the key goes on where it stopped."""
    return await _done(run, "released", queue, key, await run.operations.release_key(queue, key, **author.keywords))


async def _done(
    run: Run, past: str, queue: str, key: str, result: int | bool | None, *, head: int | None = None, then: str = ""
) -> View:
    """Return what became of a key; if nothing was changed, why, and the exit code 1."""
    done = result is not None and result is not False
    data = {"action": past, "queue": queue, "key": key, "done": done}
    if done:
        return Sentence(f"{past.capitalize()} the key {key} of {queue}{then}.", data)
    why = await _why_not(run, past, queue, key, head)
    return Sentence(f"Nothing was changed: {why}.", data | {"why": why}, exit_code=1)


async def _why_not(run: Run, past: str, queue: str, key: str, head: int | None) -> str:
    """Return why an act left a key alone, as far as the key still shows it."""
    found = await run.operations.key(queue, key, limit=1)
    if found is None:
        return f"no message of queue {queue} has the key {key}"
    first = found.messages[0].id
    if head is not None and first != head:
        return f"another message is first now: {first}"
    if found.state == "in_flight":
        return "a process is handling its first message"
    if past in ("parked", "held") and found.state == "parked":
        return "the key is parked already"
    if past == "released" and found.state != "parked":
        return f"the key is neither parked nor held: its first message is {found.state}"
    return "another transaction was changing its first message; try again"
