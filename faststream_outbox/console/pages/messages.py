"""A queue with its messages, one message, and the search over all of them."""

from typing import Any, Final, get_args

from faststream_outbox.console.errors import MissingError, PageError
from faststream_outbox.console.visit import LARGEST_ID, PAGE_SIZE, Shown, Visit, filter_of
from faststream_outbox.operations import Count, Message, MessageFilter
from faststream_outbox.storage.operating.filters import MessageState

STATES: Final[tuple[str, ...]] = get_args(MessageState)
# Which number of a queue a state is.
_COUNTED: Final = {"ready": "ready", "in_flight": "in_flight", "retrying": "retrying", "expired": "expired"}


async def queue(visit: Visit) -> Shown:
    """Show the messages of a queue, by state, and those that a search finds."""
    name = visit.query.get("name", "")
    if not name:
        raise PageError("No queue is named: choose one on the overview.")
    visit.check_queue(name)
    found = await visit.operations.queue(name, session=visit.session)
    fields = visit.given("state", "key", "correlation_id", "header", "node")
    where = filter_of(MessageFilter, {"queue": name, **message_fields(fields)})
    after = visit.query.get("after") or None
    page = await _page(visit, where, after)
    values: dict[str, Any] = {
        "name": name,
        "queue": found,
        "states": [(state, _count(found, state)) for state in STATES],
        "fields": fields,
        "is_searched": bool(fields.keys() - {"state"}),
        "page": page,
        "messages": visit.redact(page.items),
        "after": after,
        "has_control": visit.operations.control_table is not None,
    }
    if values["is_searched"]:
        # A search reads up to 10,000 rows: too much to repeat it every few seconds.
        values["live_url"] = None
    return Shown("queue.html", values)


async def _page(visit: Visit, where: MessageFilter, after: str | None) -> Any:
    try:
        return await visit.operations.messages(where, after=after, limit=PAGE_SIZE, session=visit.session)
    except ValueError as error:
        raise PageError(str(error)) from error


def message_fields(fields: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a search as values of a `MessageFilter`."""
    values: dict[str, Any] = dict(fields)
    if "header" in values:
        name, separator, value = values["header"].partition("=")
        if not (name.strip() and separator):
            raise PageError(f"A header is searched as name=value, not {values['header']!r}.")
        values["header"] = (name.strip(), value.strip())
    return values


def _count(queue: Any, state: str) -> Count | None:
    return None if queue is None or state not in _COUNTED else getattr(queue, _COUNTED[state])


async def message(visit: Visit) -> Shown:
    """Show one message: its body, its headers, and what happened to it."""
    message_id = visit.number_in_path()
    found = await visit.operations.message(message_id, session=visit.session) if message_id <= LARGEST_ID else None
    if found is None or not visit.access.sees(found.queue):
        raise MissingError(
            f"There is no message {message_id} in the outbox: it was handled, discarded or dead-lettered, or was never "
            "there."
        )
    [shown] = visit.redact([found])
    return Shown(
        "message.html", {"message": shown, "body_as": visit.query.get("body", "pretty"), "steps": _steps(shown)}
    )


def _steps(message: Message) -> list[tuple[str, Any, str]]:
    """Return what happened to a message, in the order of time: what, when, and how it looks."""
    steps: list[tuple[str, Any, str]] = [("Published", message.published_at, "plain")]
    if message.first_attempt_at is not None and message.attempts > 1:
        steps.append(("Failed for the first time", message.first_attempt_at, "bad"))
    if message.last_attempt_at is not None:
        steps.append((f"Failed, attempt {message.attempts:,}", message.last_attempt_at, "bad"))
    if message.holder is not None:
        ended = message.state == "expired"
        steps.append(("Lease ran out" if ended else "Lease ends", message.lease_expires_at, "bad" if ended else "busy"))
    elif message.due_at is not None:
        steps.append(("Due", message.due_at, "good" if message.state == "ready" else "plain"))
    return steps


async def search(visit: Visit) -> Shown:
    """Find a message or a dead letter by its id, or all of a correlation id."""
    text = visit.query.get("q", "").strip()
    if not text:
        raise PageError("Nothing is searched for: give an id or a correlation id.")
    operations, session = visit.operations, visit.session
    messages, letters = list[Any](), list[Any]()
    if text.isdecimal() and len(text) <= len(str(LARGEST_ID)) and int(text) <= LARGEST_ID:
        message = await operations.message(int(text), session=session)
        messages += [] if message is None else [message]
        if operations.has_dead_letters:
            letter = await operations.dead_letter(int(text), session=session)
            letters += [] if letter is None else [letter]
    found = await operations.find(correlation_id=text, session=session)
    values = {
        "search": text,
        "messages": visit.redact([*messages, *found.messages]),
        "letters": visit.redact([*letters, *found.dead_letters]),
        "complete": found.complete,
    }
    return Shown("search.html", values)
