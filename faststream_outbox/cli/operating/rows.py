"""Messages and dead letters as lists and as single records."""

import json
from typing import Final

from faststream_outbox.cli.operating.values import as_id
from faststream_outbox.cli.operating.views import QUEUE, STATE_COLOURS, Column, Record, column, number
from faststream_outbox.operations import Body, DeadLetter, Message

_TRACEBACK: Final = "\nTraceback (most recent call last):"


def _summary(exception: str | None) -> str | None:
    """Return an exception without its traceback, for which a list has no room."""
    return exception and exception.partition(_TRACEBACK)[0]


def no_message(message_id: int) -> str:
    """Return what is said of a message that is not there."""
    return f"There is no message {message_id}: it was handled, or it is a dead letter (dlq list)."


def no_letter(letter_id: int) -> str:
    """Return what is said of a dead letter that is not there."""
    return f"There is no dead letter {letter_id}: it was replayed or purged, or never there."


MESSAGES: Final = (
    Column("id", lambda item: as_id(item.id), "right"),
    QUEUE,
    column("key"),
    column("state", colours=STATE_COLOURS),
    number("attempts", spare=2),
    column("published", "published_at", spare=3),
    column("due", "due_at"),
    column("holder", spare=1),
    Column("last failure", lambda item: _summary(item.last_failure)),
)
DEAD_LETTERS: Final = (
    Column("id", lambda item: as_id(item.id), "right"),
    QUEUE,
    column("key"),
    column("reason", colour="red", whole=True),
    number("attempts", spare=2),
    column("failed", "failed_at"),
    column("exception type", spare=1),
    Column("exception", lambda item: _summary(item.exception)),
)


def show_message(message: Message) -> Record:
    """Return a message with its headers and its decoded body."""
    return Record(
        message,
        {
            "id": as_id(message.id),
            "queue": message.queue,
            "key": message.key,
            "state": message.state,
            "blocked by": _blocked_by(message),
            "published": message.published_at,
            "due": message.due_at,
            "attempts": message.attempts,
            "deliveries": message.deliveries,
            "first attempt": message.first_attempt_at,
            "last attempt": message.last_attempt_at,
            "correlation id": message.correlation_id,
            "timer": message.timer_id,
            "holder": _holder(message),
            "lease until": message.lease_expires_at,
        },
        _texts(message.headers, message.body, "last failure", message.last_failure),
    )


def _blocked_by(message: Message) -> str | None:
    """Return which message is in front of this one, and why that one waits."""
    if message.blocked_by is None:
        return None
    why = f", {message.blocked_because}" if message.blocked_because else ""
    return f"message {as_id(message.blocked_by)}, the first of its key{why}"


def _holder(message: Message) -> str | None:
    """Return who holds a message, where it runs and whether it is alive, as far as is known."""
    alive = None if message.holder_alive is None else "alive" if message.holder_alive else "dead"
    known = ", ".join(filter(None, (message.holder_process, alive)))
    return f"{message.holder} ({known})" if known else message.holder


def show_dead_letter(letter: DeadLetter) -> Record:
    """Return a dead letter with its headers, its decoded body and its exception."""
    return Record(
        letter,
        {
            "id": as_id(letter.id),
            "original id": as_id(letter.original_id),
            "queue": letter.queue,
            "key": letter.key,
            "reason": letter.reason,
            "exception type": letter.exception_type,
            "published": letter.published_at,
            "failed": letter.failed_at,
            "attempts": letter.attempts,
            "deliveries": letter.deliveries,
            "first attempt": letter.first_attempt_at,
            "last attempt": letter.last_attempt_at,
            "correlation id": letter.correlation_id,
            "timer": letter.timer_id,
        },
        _texts(letter.headers, letter.body, "exception", letter.exception),
    )


def _texts(headers: dict[str, object], body: Body, name: str, failure: str | None) -> dict[str, str]:
    texts = {"headers": json.dumps(headers, indent=2, ensure_ascii=False)} if headers else {}
    texts["body"] = body.pretty()
    return texts | ({name: failure} if failure else {})
