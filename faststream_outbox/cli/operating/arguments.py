"""Options that several commands have: which rows, how many, since when, why."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, get_args

import typer

from faststream_outbox.cli.errors import UsageError
from faststream_outbox.operations import DeadLetterFilter, MessageFilter

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_WHICH: Final = "Which rows"
_ACT: Final = "The act"


def _parse_time(text: str | datetime, direction: int) -> datetime:
    """Return a time of ISO 8601, in UTC if it names no zone; or that of a duration, such as `2h`, from now."""
    if isinstance(text, datetime):
        return text
    if found := _DURATION.fullmatch(text.strip()):
        return datetime.now(UTC) + direction * timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time; write 2026-05-01T12:00Z, or a duration such as 15m, 2h or 3d."
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def past_time(text: str) -> datetime:
    """Return a time, or one so long ago."""
    return _parse_time(text, -1)


def future_time(text: str) -> datetime:
    """Return a time, or one so long from now."""
    return _parse_time(text, 1)


def parse_header(text: str | None) -> tuple[str, str] | None:
    """Return the name and the value of `name=value`."""
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--header: {text!r} is not a header; write name=value.")
    return name, value


class RoleKind(StrEnum):
    """What a role of the database is for."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    VIEWER = "viewer"


def which(kind: Any, *names: str, help_: str, **options: Any) -> Any:
    """Return an option that chooses rows."""
    return Annotated[kind | None, typer.Option(*names, help=help_, rich_help_panel=_WHICH, **options)]


def when(help_: str) -> Any:
    """Return an option that chooses rows by a time in the past."""
    text = f"{help_}: a time, or how long ago (2h)."
    return which(datetime, help_=text, parser=past_time, metavar="TIME")


@dataclass(frozen=True)
class Bundle:
    """Options that a command gets together, as one value."""

    # The parameter of the command's function.
    name: str
    options: Mapping[str, Any]
    make: Callable[..., Any]
    # Options that must be given.
    required: Collection[str] = ()

    def parameters(self) -> list[inspect.Parameter]:
        """Return the parameters that typer makes options of."""
        return [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in self.required else _default_of(kind),
                annotation=kind,
            )
            for name, kind in self.options.items()
        ]

    def take(self, given: dict[str, Any]) -> None:
        """Replace the options in what was given by their one value; raise `UsageError` if one is wrong."""
        values = {name: given.pop(name) for name in self.options}
        try:
            given[self.name] = self.make(**values)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from error


def _default_of(kind: Any) -> Any:
    return False if get_args(kind)[0] is bool else None


_QUEUE: Final = which(str, "--queue", "-q", help_="Of this queue.")
_KEY: Final = which(str, help_="Of this key.")
_CORRELATION_ID: Final = which(str, help_="With this correlation id.")


def _message_filter(*, header: str | None, **values: Any) -> MessageFilter:
    return MessageFilter(header=parse_header(header), **values)


MESSAGE_FILTER: Final = Bundle(
    "where",
    {
        "queue": _QUEUE,
        "key": _KEY,
        "state": which(str, help_="In this state: ready, blocked, delayed, retrying, parked, in_flight or expired."),
        "correlation_id": _CORRELATION_ID,
        "header": which(str, help_="With this header.", metavar="NAME=VALUE"),
        "timer_id": which(str, help_="Of this timer."),
        "node": which(str, help_="In the hands of this node."),
        "published_after": when("Published at this time or later"),
        "published_before": when("Published before"),
    },
    _message_filter,
)


def _dead_letter_filter(*, failure_reason: str | None, **values: Any) -> DeadLetterFilter:
    return DeadLetterFilter(reason=failure_reason, **values)  # type: ignore[arg-type] # the filter checks it


DEAD_LETTER_FILTER: Final = Bundle(
    "where",
    {
        "queue": _QUEUE,
        "key": _KEY,
        "failure_reason": which(str, help_="Failed for this reason: max_deliveries, retry_terminal or rejected."),
        "exception_type": which(str, help_="With an exception of this type, such as ValueError."),
        "correlation_id": _CORRELATION_ID,
        "failed_after": when("Failed at this time or later"),
        "failed_before": when("Failed before"),
    },
    _dead_letter_filter,
)
TIMER_FILTER: Final = Bundle(
    "where",
    {name: MESSAGE_FILTER.options[name] for name in ("queue", "timer_id", "state")},
    MessageFilter,
)


@dataclass(frozen=True)
class PageOptions:
    """Which part of a list is read."""

    after: str | None
    limit: int


PAGE: Final = Bundle(
    "page",
    {
        "after": Annotated[str | None, typer.Option(help="Go on after this place, which the command before named.")],
        "limit": Annotated[int | None, typer.Option("--limit", "-n", help="At most so many (default: 100).", min=1)],
    },
    lambda *, after, limit: PageOptions(after, limit or 100),
)


@dataclass(frozen=True)
class Author:
    """Who acts, and why."""

    reason: str
    by: str | None

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments of an act."""
        return {"reason": self.reason, "by": self.by}


_AUTHOR: Final = {
    "reason": Annotated[str, typer.Option("--reason", "-r", help="Why, for the audit.", rich_help_panel=_ACT)],
    "by": Annotated[str | None, typer.Option(help="Who; by default user@host.", rich_help_panel=_ACT)],
}
AUTHOR: Final = Bundle("author", _AUTHOR, Author, required=("reason",))


@dataclass(frozen=True)
class Order:
    """An act on rows that ids or a filter choose."""

    author: Author
    ids: list[int]
    everything: bool
    yes: bool


def _order(*, reason: str, by: str | None, ids: list[int] | None, everything: bool, yes: bool) -> Order:
    return Order(Author(reason, by), ids or [], everything, yes)


ROWS: Final = {
    "ids": Annotated[list[int] | None, typer.Argument(help="The ids of rows; or choose rows by the options.")],
    "everything": Annotated[
        bool, typer.Option("--all", help="All rows, where nothing else chooses.", rich_help_panel=_WHICH)
    ],
}
ORDER: Final = Bundle(
    "order",
    {
        **ROWS,
        **_AUTHOR,
        "yes": Annotated[
            bool,
            typer.Option(
                "--yes",
                "-y",
                help="Do it. Without it, say what would be done; only one row that is named by its id needs no --yes.",
                rich_help_panel=_ACT,
            ),
        ],
    },
    _order,
    required=("reason",),
)
