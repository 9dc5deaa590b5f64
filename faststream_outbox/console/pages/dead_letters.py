"""Dead letters: groups, the rows of a group, one letter with its trace, and the form that edits it."""

import json
from typing import Any, Final

from faststream_outbox.console.errors import MissingError, PageError, RefusedError
from faststream_outbox.console.formats import plain_json, size
from faststream_outbox.console.visit import LARGEST_ID, PAGE_SIZE, Shown, Visit, filter_of
from faststream_outbox.operations import Body, DeadLetter, DeadLetterFilter

# A form has three bytes for each byte that is no letter, and `read_form` takes 16 MiB.
_MOST_EDITED: Final = 4 * 1024 * 1024
FIELDS: Final = ("queue", "reason", "exception_type", "key", "correlation_id")


async def groups(visit: Visit) -> Shown:
    """Show dead letters by queue, reason and type of exception."""
    if not visit.operations.has_dead_letters:
        return Shown("dead_letters.html", {"groups": None, "most": 0})
    found = await visit.operations.dead_letter_groups(session=visit.session)
    shown = [each for each in found if visit.access.sees(each.queue)]
    return Shown("dead_letters.html", {"groups": shown, "most": max((each.count.number for each in shown), default=0)})


async def letters(visit: Visit) -> Shown:
    """Show the dead letters that match, the newest first."""
    fields = visit.given(*FIELDS)
    if not visit.operations.has_dead_letters:
        return Shown("letters.html", {"letters": [], "page": None, "after": None, "fields": fields})
    if "queue" in fields:
        visit.check_queue(fields["queue"])
    where = filter_of(DeadLetterFilter, fields)
    after = visit.query.get("after") or None
    try:
        page = await visit.operations.dead_letters(where, after=after, limit=PAGE_SIZE, session=visit.session)
    except ValueError as error:
        raise PageError(str(error)) from error
    values: dict[str, Any] = {"letters": visit.redact(page.items), "page": page, "after": after, "fields": fields}
    return Shown("letters.html", values)


async def dead_letter(visit: Visit) -> Shown:
    """Show one dead letter: its exception with the trace, its body and its headers."""
    letter = await _read(visit)
    return Shown("letter.html", {"letter": letter, "body_as": visit.query.get("body", "pretty")})


async def edit_dead_letter(visit: Visit) -> Shown:
    """Show the form that edits a dead letter and sends it again."""
    letter = await _read(visit)
    if not visit.may("edit_and_replay", letter.queue):
        raise RefusedError("Dead letters cannot be edited here: the console is read-only, or you have no right to it.")
    if letter.body.text is not None and len(letter.body.raw) > _MOST_EDITED:
        raise PageError(
            f"The body has {size(len(letter.body.raw))}, and at most {size(_MOST_EDITED)} can be edited here: use "
            f"`faststream-outbox dlq edit {letter.id} --body @FILE --reason WHY`."
        )
    return edit_form(letter)


def edit_form(letter: DeadLetter, error: str | None = None, **given: str) -> Shown:
    """Return the form, with what was given before and why that was refused."""
    values = {
        "letter": letter,
        "is_json": is_json(letter.body),
        "error": error,
        "body": given.get("body", letter.body.pretty()),
        "headers": given.get("headers", "\n".join(header_lines(letter))),
        "reason": given.get("reason", ""),
    }
    return Shown("edit.html", values, 200 if error is None else 422)


def is_json(body: Body) -> bool:
    """Return whether a handler parses a body as JSON."""
    content_type = (body.content_type or "").partition(";")[0]
    return content_type.endswith("json") if content_type else not isinstance(body.data, str | bytes)


def header_lines(letter: DeadLetter) -> list[str]:
    """Return the headers of a dead letter as lines of `name=value`."""
    lines = ((name, plain_json(value)) for name, value in letter.headers.items())
    # A line is a header: a value of several lines is shown as JSON.
    return [f"{name}={value if len(value.splitlines()) <= 1 else json.dumps(value)}" for name, value in lines]


async def _read(visit: Visit) -> DeadLetter:
    letter_id = visit.number_in_path()
    letter = await visit.operations.dead_letter(letter_id, session=visit.session) if letter_id <= LARGEST_ID else None
    if letter is None or not visit.access.sees(letter.queue):
        raise MissingError(f"There is no dead letter {letter_id}: it was replayed or purged, or was never there.")
    return visit.redact([letter])[0]
