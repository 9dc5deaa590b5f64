"""Values for people and for programs: in the cells of a table, and as JSON."""

import base64
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final

from faststream_outbox.operations import Body, Count

# A cell is a line: longer texts are seen by `show` or as JSON.
_LONGEST_CELL: Final = 80
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_DAY: Final = 86400.0


def as_json(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """Return a value as JSON has it: objects as mappings, times as ISO 8601, counts as `{number, capped}`."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Body():
            return _body_as_json(value)
        case Mapping():
            return {str(name): as_json(each) for name, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(each) for each in value]
    if is_dataclass(value):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    return str(value)


def _body_as_json(body: Body) -> dict[str, Any]:
    """Return the decoded body; bytes that are no text are in base64."""
    kind: dict[str, Any] = {"content_type": body.content_type}
    if body.text is None:
        return kind | {"base64": base64.b64encode(body.raw).decode()}
    return kind | {"data": body.text if isinstance(body.data, bytes) else body.data}


def as_cell(value: Any) -> str:  # noqa: PLR0911 - same
    """Return a value as one line of text, without characters that a terminal would obey."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return as_time(value)
        case int():
            return f"{value:,}"
        case float():
            return as_age(value)
        case Count():
            return str(value)
        case Body():
            return shorten(" ".join((value.text if value.text is not None else value.pretty()).split()))
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(as_cell, value)) or "-"
        case Mapping():
            return ", ".join(f"{name}={_as_inner_cell(each)}" for name, each in value.items()) or "-"
    return shorten(" ".join(str(value).split()))


def _as_inner_cell(value: Any) -> str:
    """Return a value inside a mapping; what has several parts is in brackets."""
    several = isinstance(value, Mapping | list | tuple | set | frozenset)
    return f"({as_cell(value)})" if several else as_cell(value)


def as_id(value: int | None) -> str:
    """Return an id, which is copied and so has no commas."""
    return "-" if value is None else str(value)


def as_time(value: datetime) -> str:
    """Return a time in UTC, to the second."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def as_relative(value: datetime) -> str:
    """Return how long ago a time was, or how soon it comes: shorter than the time, so that a terminal has room."""
    seconds = (value - datetime.now(UTC)).total_seconds()
    return f"in {as_age(seconds)}" if seconds > 0 else f"{as_age(-seconds)} ago"


def as_age(seconds: float) -> str:
    """Return a duration in the unit that fits."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"


def shorten(text: str) -> str:
    """Return the beginning of a text that is too long for a cell."""
    text = printable(text)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def printable(text: str) -> str:
    """Return a text whose control characters are shown as escapes; line breaks and tabs stay.

    A message may hold sequences that change the screen, or what is typed into it.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each in "\n\t" or unicodedata.category(each) not in ("Cc", "Cf", "Cs") else repr(each)[1:-1]
        for each in text
    )
