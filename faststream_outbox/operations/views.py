"""What operators see: messages, dead letters, and pages of them."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from faststream_outbox.envelope import CONTENT_TYPE, CORRELATION_ID
from faststream_outbox.operations.bodies import Body
from faststream_outbox.storage.nodes import holder_name
from faststream_outbox.storage.operating.exception_types import exception_type
from faststream_outbox.storage.operating.filters import MessageState
from faststream_outbox.storage.operating.reads import DeadLetterRow, Head, Search
from faststream_outbox.storage.ordering.states import state_of
from faststream_outbox.storage.parking import cause_in, strip_cause
from faststream_outbox.storage.rows import OutboxRow, to_datetime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list, and where the next ones begin.

    Attributes:
        items: The items.
        after: Give it to the next call for the items that follow; None at the end of the list.
        complete: Whether all rows up to `after` were compared with the filter. A search that meets too few matching
            rows stops after so many: then a page may be short, or empty, and `after` still leads on.

    """

    items: list[T]
    after: str | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """A message that waits in the outbox, or that a process handles.

    Attributes:
        id: The id of its row.
        queue: The name of the queue.
        key: The key, if it has one.
        state: `"ready"`, `"blocked"` (it is due, and the first message of its key waits or is being handled),
            `"delayed"`, `"retrying"`, `"parked"`, `"in_flight"` or `"expired"`.
        body: The body.
        headers: The headers, as they were published.
        correlation_id: The correlation id, if it was published with one.
        timer_id: The name of the timer, if it is one.
        published_at: When the publishing transaction began.
        due_at: When it is, or was, due; None if it is parked.
        attempts: How often its handler failed.
        deliveries: How often it was claimed.
        first_attempt_at: When its handler first failed.
        last_attempt_at: When its handler failed last.
        last_failure: Why its handler failed last, or why it is parked.
        holder: The name of the node that holds it, `"unknown"` if its token has none; None if it is free.
        lease_expires_at: Until when the holder has it.
        holder_process: Where the holder runs, `"host:pid"`, if it is known; only `message()` looks for it.
        holder_alive: Whether the holder is alive; only `message()` looks for it.
        blocked_by: The id of the first message of its key, if this one waits until that one is handled, whatever its
            own state.
        blocked_because: The state of that message, and why it is in it; only `message()` looks for it.

    """

    id: int
    queue: str
    key: str | None
    state: MessageState
    body: Body
    headers: dict[str, Any]
    correlation_id: str | None
    timer_id: str | None
    published_at: datetime
    due_at: datetime | None
    attempts: int
    deliveries: int
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_failure: str | None
    holder: str | None
    lease_expires_at: datetime | None
    holder_process: str | None = None
    holder_alive: bool | None = None
    blocked_by: int | None = None
    blocked_because: str | None = None

    @classmethod
    def each(cls, found: Search[OutboxRow]) -> list["Message"]:
        """Return the rows that a search found."""
        return [cls.of(row, found.now, found.heads.get(row.id)) for row in found.items]

    @classmethod
    def of(cls, row: OutboxRow, now: float, head: Head | None) -> "Message":
        """Return a row as operators see it, at this time of the database; `head` is before it in its key."""
        headers, token, state = _headers(row.headers_json), row.acquired_token, state_of(row, now)
        waits_for = None if head is None or head.state == "ready" or token is not None else head.id
        return cls(
            id=row.id,
            queue=row.queue,
            key=row.entity_key,
            state="blocked" if state == "ready" and waits_for is not None else state,
            body=Body.of(row.payload, _text(headers.get(CONTENT_TYPE))),
            headers=headers,
            correlation_id=_text(headers.get(CORRELATION_ID)),
            timer_id=row.timer_id,
            published_at=row.created_at,
            due_at=None if state == "parked" else row.next_attempt_at,
            attempts=row.attempts_count,
            deliveries=row.deliveries_count,
            first_attempt_at=row.first_attempt_at,
            last_attempt_at=row.last_attempt_at,
            last_failure=str(cause_in(row.headers_json)) or None,
            holder=holder_name(token),
            lease_expires_at=None if token is None else row.lease_expires_at,
            blocked_by=waits_for,
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed for good.

    Attributes:
        id: Its id in the dead-letter table.
        original_id: Its id in the outbox.
        queue: The name of the queue.
        key: The key, if it has one.
        body: The body.
        headers: The headers, as they were published.
        correlation_id: The correlation id, if it was published with one.
        timer_id: The name of the timer, if it was one.
        published_at: When the publishing transaction began.
        failed_at: When it was moved to the dead letters.
        reason: `"max_deliveries"`, `"retry_terminal"` or `"rejected"`.
        exception: The text of the last exception, or what an operator gave as reason.
        exception_type: The type of the exception, with its module: `"ValueError"`, `"app.errors.PaymentError"`.
        attempts: How often its handler failed.
        deliveries: How often it was claimed.
        first_attempt_at: When its handler first failed.
        last_attempt_at: When its handler failed last.

    """

    id: int
    original_id: int
    queue: str
    key: str | None
    body: Body
    headers: dict[str, Any]
    correlation_id: str | None
    timer_id: str | None
    published_at: datetime
    failed_at: datetime
    reason: str
    exception: str | None
    exception_type: str | None
    attempts: int
    deliveries: int
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None

    @classmethod
    def of(cls, row: DeadLetterRow) -> "DeadLetter":
        """Return a row of the dead-letter table as operators see it."""
        headers = _headers(row.headers_json)
        return cls(
            id=row.id,
            original_id=row.original_id,
            queue=row.queue,
            key=row.entity_key,
            body=Body.of(row.payload, _text(headers.get(CONTENT_TYPE))),
            headers=headers,
            correlation_id=_text(headers.get(CORRELATION_ID)),
            timer_id=row.timer_id,
            published_at=to_datetime(row.created_epoch),
            failed_at=to_datetime(row.failed_epoch),
            reason=row.failure_reason,
            exception=row.last_exception,
            exception_type=exception_type(row.last_exception),
            attempts=row.attempts_count,
            deliveries=row.deliveries_count,
            first_attempt_at=_time(row.first_attempt_epoch),
            last_attempt_at=_time(row.last_attempt_epoch),
        )


def _headers(text: str | None) -> dict[str, Any]:
    """Return the headers of a row; those that are no JSON object are shown under an empty name."""
    headers = None if text is None else strip_cause(json.loads(text))
    if headers is None:
        return {}
    return headers if isinstance(headers, dict) else {"": headers}


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _time(epoch: float | None) -> datetime | None:
    return None if epoch is None else to_datetime(epoch)
