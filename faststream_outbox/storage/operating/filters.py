"""Which rows an operator means (`MessageFilter`, `DeadLetterFilter`), and how many there are (`Count`)."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, get_args

from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.outcomes import FailureReason

# Counting stops here: the cost of a count does not grow with the table.
COUNT_CAP: Final = 10_000

MessageState = Literal["ready", "blocked", "delayed", "retrying", "parked", "in_flight", "expired"]


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; `capped` says that counting stopped, and there are as many or more.

    Example:
        str(Count(10_000, capped=True))  # "10,000+"

    """

    number: int
    capped: bool = False

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.capped else ''}"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Messages that wait in the outbox and have all that is given here; without anything given, all messages.

    Attributes:
        queue: The name of the queue.
        key: The key.
        state: `"ready"`, `"blocked"` (due, behind a first message of its key that waits or is being handled),
            `"delayed"` (not due yet), `"retrying"`, `"parked"`, `"in_flight"` or `"expired"` (the lease ran out).
        correlation_id: The correlation id.
        header: The name and the value of a header.
        timer_id: The name of a timer.
        node: The name of the node that holds the message.
        published_after: Published at this time or later; with a time zone.
        published_before: Published before this time; with a time zone.

    Example:
        MessageFilter(queue="orders", state="retrying")

    """

    queue: str | None = None
    key: str | None = None
    state: MessageState | None = None
    correlation_id: str | None = None
    header: tuple[str, str] | None = None
    timer_id: str | None = None
    node: str | None = None
    published_after: datetime | None = None
    published_before: datetime | None = None

    def __post_init__(self) -> None:
        _check_names(self, "queue", "key", "timer_id")
        _check_choice("state", self.state, MessageState)
        _check_times(self, "published_after", "published_before")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Return the names and values that were given."""
        return _given(self)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Dead letters that have all that is given here; without anything given, all dead letters.

    Attributes:
        queue: The name of the queue.
        key: The key.
        reason: The `failure_reason`: `"max_deliveries"`, `"retry_terminal"` or `"rejected"`.
        exception_type: The type of the last exception, such as `"ValueError"`.
        correlation_id: The correlation id.
        failed_after: Failed for good at this time or later; with a time zone.
        failed_before: Failed for good before this time; with a time zone.

    Example:
        DeadLetterFilter(queue="orders", exception_type="TimeoutError")

    """

    queue: str | None = None
    key: str | None = None
    reason: FailureReason | None = None
    exception_type: str | None = None
    correlation_id: str | None = None
    failed_after: datetime | None = None
    failed_before: datetime | None = None

    def __post_init__(self) -> None:
        _check_names(self, "queue", "key")
        _check_choice("reason", self.reason, FailureReason)
        _check_times(self, "failed_after", "failed_before")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Return the names and values that were given."""
        return _given(self)


def _given(where: MessageFilter | DeadLetterFilter) -> Iterator[tuple[str, Any]]:
    values = ((each.name, getattr(where, each.name)) for each in fields(where))
    return ((name, value) for name, value in values if value is not None)


def _check_names(where: object, *names: str) -> None:
    for name in names:
        if (value := getattr(where, name)) is not None:
            check_name(name, value)


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value is not None and value not in get_args(choices):
        raise ValueError(f"{name} is one of {', '.join(get_args(choices))}, not {value!r}.")


def _check_times(where: object, *names: str) -> None:
    for name in names:
        value = getattr(where, name)
        if value is not None and not isinstance(value, datetime):
            raise TypeError(f"{name} is a datetime with a time zone, not {type(value).__name__}.")
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{name} has no time zone: use datetime(…, tzinfo=UTC) or datetime.now(UTC).")
