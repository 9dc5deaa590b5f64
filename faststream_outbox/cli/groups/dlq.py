"""`faststream-outbox dlq`: messages that failed for good."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.operating.acts import Verb, act, choose, done
from faststream_outbox.cli.operating.arguments import (
    AUTHOR,
    DEAD_LETTER_FILTER,
    ORDER,
    PAGE,
    ROWS,
    Author,
    Bundle,
    Order,
    PageOptions,
    parse_header,
)
from faststream_outbox.cli.operating.command import Run, operator_command
from faststream_outbox.cli.operating.pages import read_pages
from faststream_outbox.cli.operating.rows import DEAD_LETTERS, no_letter, show_dead_letter
from faststream_outbox.cli.operating.values import as_id
from faststream_outbox.cli.operating.views import QUEUE, Column, Rows, View, column, number
from faststream_outbox.operations import DeadLetterFilter

group = typer.Typer(help="Dead letters: messages that failed for good.", no_args_is_help=True)

_REPLAY: Final = Verb("replay", "replayed", "dead letter")
_PURGE: Final = Verb("purge", "purged", "dead letter")
_GROUPS: Final = (
    number("count"),
    QUEUE,
    column("reason", whole=True),
    column("exception type"),
    column("first failed", "first_failed_at", spare=1),
    column("last failed", "last_failed_at"),
    Column("example", lambda item: as_id(item.example_id), "right"),
)
_CHOSEN: Final = Bundle("chosen", ROWS, lambda *, ids, everything: (ids or [], everything))
Id = Annotated[int, typer.Argument(help="The id of the dead letter.")]


@operator_command(group, "groups", watch=True)
async def groups(run: Run) -> View:
    """Count dead letters by queue, reason and type of exception, with an example of each."""
    found = await run.operations.dead_letter_groups()
    return Rows(_GROUPS, found, "No dead letters.")


@operator_command(group, "list", DEAD_LETTER_FILTER, PAGE, watch=True)
async def list_dead_letters(run: Run, where: DeadLetterFilter, page: PageOptions) -> View:
    """List dead letters."""
    return await read_pages(partial(run.operations.dead_letters, where), DEAD_LETTERS, page, "No dead letters.")


@operator_command(group, "show")
async def show(
    run: Run,
    letter_id: Id,
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Write the bytes of the body as they are.")] = False,
) -> View | None:
    """Show one dead letter: its headers, its body decoded, its exception."""
    letter = await run.operations.dead_letter(letter_id)
    if letter is None:
        raise ProgramError(no_letter(letter_id))
    if raw:
        run.output.raw(letter.body.raw)
        return None
    return show_dead_letter(letter)


@operator_command(group, "replay", DEAD_LETTER_FILTER, ORDER)
async def replay(
    run: Run,
    where: DeadLetterFilter,
    order: Order,
    *,
    rate: Annotated[float | None, typer.Option(help="At most so many per second.", min=0.001)] = None,
) -> View:
    """Send dead letters again: back into their queues, those with a key before what waits of it."""
    return await act(run, _REPLAY, order, where, partial(run.operations.replay, rate=rate))


@operator_command(group, "edit", AUTHOR)
async def edit(
    run: Run,
    letter_id: Id,
    author: Author,
    *,
    body: Annotated[
        str | None, typer.Option(help="The new body: JSON or text; - reads it from stdin, @FILE from a file.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a header; NAME= removes it. Repeatable.")
    ] = None,
) -> View:
    """Change the body or the headers of one dead letter, and replay it."""
    letter = await run.operations.dead_letter(letter_id)
    if letter is None:
        raise ProgramError(no_letter(letter_id))
    changes: dict[str, Any] = {}
    if body is not None:
        changes["body"] = _check_body(_read_body(body), letter.body.content_type)
    if header:
        changes["headers"] = _split_headers(header)
    if not changes:
        raise UsageError("Nothing is changed: give --body or --header, or use `dlq replay`.")
    result = await run.operations.edit_and_replay(letter_id, **changes, **author.keywords)
    return done(_REPLAY, result)


def _read_body(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise UsageError(f"--body: {text[1:]} cannot be read: {error.strerror}.") from error
    return text.encode()


def _check_body(body: bytes, content_type: str | None) -> bytes:
    """Return the body; raise `UsageError` if its handler could not decode it."""
    if content_type is not None and content_type.partition(";")[0].endswith("json"):
        try:
            json.loads(body)
        except ValueError as error:
            raise UsageError(f"--body: this is not JSON, and the content type is {content_type}: {error}.") from error
    return body


def _split_headers(changes: list[str]) -> dict[str, str | None]:
    found = [parse_header(each) or ("", "") for each in changes]
    return {name: value or None for name, value in found}


@operator_command(group, "purge", DEAD_LETTER_FILTER, ORDER)
async def purge(run: Run, where: DeadLetterFilter, order: Order) -> View:
    """Delete dead letters for good."""
    return await act(run, _PURGE, order, where, run.operations.purge)


@operator_command(group, "export", DEAD_LETTER_FILTER, _CHOSEN)
async def export(run: Run, where: DeadLetterFilter, chosen: tuple[list[int], bool]) -> None:
    """Write dead letters as JSON lines, complete enough to insert them again; nothing is changed."""
    ids, everything = chosen
    choice = await choose(run, ids, where, everything=everything, look=False)
    count = 0
    async for each in run.operations.export(choice.selected):
        run.output.plain(json.dumps(each, ensure_ascii=False))
        count += 1
    run.output.note(f"Exported {count:,} dead letter{'' if count == 1 else 's'}.")
