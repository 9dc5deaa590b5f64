"""Edit a dead letter and send it again: the new body is checked before anything is changed."""

import json
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from faststream_outbox.console.access import Access
from faststream_outbox.console.acts.jobs import run_job
from faststream_outbox.console.answers import Console
from faststream_outbox.console.errors import MissingError, PageError
from faststream_outbox.console.forms import read_form, reason_of
from faststream_outbox.console.pages.dead_letters import edit_form, header_lines, is_json
from faststream_outbox.console.site import Job
from faststream_outbox.operations import Count, DeadLetter


async def edit(console: Console, request: Request, access: Access) -> Response:
    """Check what was edited; show the form again if it is wrong, and replay the dead letter otherwise."""
    site, given = console.site, await read_form(request)
    letter_id = str(request.path_params["id"])
    letter = await site.operations.dead_letter(int(letter_id)) if letter_id.isdecimal() else None
    if letter is None or not access.sees(letter.queue):
        raise MissingError(f"There is no dead letter {letter_id}: it was replayed or purged, or was never there.")
    console.check_act(access, "edit_and_replay", letter.queue)
    shown: DeadLetter = site.redact(letter)
    fields = {name: _lines(given.get(name)) for name in ("body", "headers", "reason")}
    try:
        changes = changes_of(shown, fields)
        reason = reason_of(given)
    except (PageError, ValueError) as error:
        return console.respond(request, access, "dead-letters", edit_form(shown, str(error), **fields))
    back = f"dead-letters/{letter.id}"
    job = Job("edit_and_replay", "Edit and replay", "dead letter", back, access.user, reason, Count(1))
    act = partial(site.operations.edit_and_replay, letter.id, **changes, reason=reason, by=access.user)
    return await run_job(console, request, job, lambda _progress: act())


def changes_of(letter: DeadLetter, fields: dict[str, str]) -> dict[str, Any]:
    """Return what a form has changed of a dead letter; raise `PageError` if that is nothing, or is wrong."""
    changes: dict[str, Any] = {}
    if letter.body.text is not None and fields["body"] != _lines(letter.body.pretty()):
        changes["body"] = _check_body(fields["body"], letter)
    headers = _changed_headers(letter, fields["headers"])
    if headers:
        changes["headers"] = headers
    if not changes:
        raise PageError("Nothing is changed: edit the body or the headers, or replay the dead letter as it is.")
    return changes


def _lines(text: str) -> str:
    """Return a text with the line ends that a field of a form has: whatever they were, a browser sends its own."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check_body(text: str, letter: DeadLetter) -> bytes:
    """Return the body; raise `PageError` if a handler could not decode it."""
    if is_json(letter.body):
        try:
            json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            raise PageError(f"The body is not JSON: {error}.") from error
        except RecursionError:
            raise PageError("The body is not JSON that can be read: it is nested too deeply.") from None
    elif "\r\n" in (letter.body.text or ""):
        text = text.replace("\n", "\r\n")
    return text.encode()


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _changed_headers(letter: DeadLetter, text: str) -> dict[str, Any]:
    before = dict(line.split("=", 1) for line in header_lines(letter))
    after: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, separator, value = line.partition("=")
        if not (name.strip() and separator):
            raise PageError(f"Headers are lines of name=value, not {line!r}.")
        after[name.strip()] = value
    changed: dict[str, Any] = {name: value for name, value in after.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - after.keys())
