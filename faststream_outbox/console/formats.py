"""How the console writes numbers, times and sizes."""

import json
import unicodedata
from datetime import UTC, datetime
from typing import Any, Final, get_args

from markupsafe import Markup, escape

from faststream_outbox.operations import Body, Count
from faststream_outbox.storage.outcomes import FailureReason

# What stands where there is no value: a dash, the sign of typographers for it.
_NOTHING: Final = "\u2013"
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_KIBIBYTE: Final = 1024
_PREVIEW: Final = 120
# Categories of Unicode: control characters, and those that steer how others are shown; and separators of lines.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})
_HEX_ROW: Final = 16
# How much of a body a page shows; the rest can be exported.
MOST_SHOWN: Final = 256 * 1024
_MOST_HEX: Final = 16 * 1024


def duration(seconds: float | None) -> str:
    """Return a time span: `"4 min"`, `"2 h 5 min"`, `"3 d"`; a dash for None."""
    if seconds is None:
        return _NOTHING
    if seconds < 1:
        return "< 1 s"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    count, rest = divmod(int(seconds), size)
    minutes = f" {rest // 60} min" if unit == "h" and rest >= 60 else ""  # noqa: PLR2004 - a minute
    return f"{count:,} {unit}{minutes}"


def ago(seconds: float) -> str:
    """Return how long ago something was: `"4 min ago"`, `"just now"`."""
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def exact(at: datetime) -> str:
    """Return a time in full, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def moment(at: datetime | None, now: datetime | None = None) -> Markup:
    """Return a time relative to now, with the exact one on hover: `4 min ago`, `in 2 h`."""
    if at is None:
        return Markup('<span class="none">{}</span>').format(_NOTHING)
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    words = f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"
    if abs(seconds) < 1:
        words = "now"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), exact(at), words)


def number(value: Count | int | None) -> Markup:
    """Return a number with its thousands parted; zero and none are quiet."""
    if value is None:
        return Markup('<span class="none">{}</span>').format(_NOTHING)
    text = str(value) if isinstance(value, Count) else f"{value:,}"
    if (value.number if isinstance(value, Count) else value) == 0:
        return Markup('<span class="zero">{}</span>').format(text)
    return escape(text)


def size(count: int) -> str:
    """Return a number of bytes."""
    if count < _KIBIBYTE:
        return f"{count:,} B"
    if count < _KIBIBYTE**2:
        return f"{count / _KIBIBYTE:,.1f} KiB"
    return f"{count / _KIBIBYTE**2:,.1f} MiB"


def rate(value: float | None) -> str:
    """Return a number per second."""
    if value is None:
        return _NOTHING
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:,.1f}"  # noqa: PLR2004


def plural(count: Count | int, noun: str) -> str:
    """Return a number with its noun: `"1 dead letter"`, `"10,000+ messages"`."""
    one = count == 1 or (isinstance(count, Count) and count.number == 1 and not count.capped)
    text = str(count) if isinstance(count, Count) else f"{count:,}"
    return f"{text} {noun}{'' if one else 's'}"


def first_line(text: str | None, most: int = _PREVIEW) -> str:
    """Return the first line of a text, cut."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"


def short_exception(text: str | None) -> str:
    """Return the first line of an exception, without the module of its type, and without why its message is parked."""
    line = first_line(text)
    for reason in get_args(FailureReason):
        line = line.removeprefix(f"{reason}: ")
    name, separator, rest = line.partition(": ")
    return line if " " in name else f"{name.rpartition('.')[2]}{separator}{rest}"


def visible(text: str) -> str:
    r"""Return a name with its control characters as `\u202e`: some turn or hide the characters beside them."""
    return "".join(_escaped(each) if unicodedata.category(each) in _HIDDEN else each for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    # Emojis and Persian words are joined with these two.
    return character if character in "\u200c\u200d" else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def preview(body: Body) -> str:
    """Return the beginning of a body, on one line."""
    if body.text is None:
        return f"{body.raw[:_HEX_ROW].hex(' ')}{' …' if len(body.raw) > _HEX_ROW else ''}"
    text = " ".join(body.text[: 4 * _PREVIEW].split())
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…"


def hexadecimal(raw: bytes) -> str:
    """Return bytes as rows of offset, hexadecimal digits and characters."""
    rows = []
    for start in range(0, min(len(raw), _MOST_HEX), _HEX_ROW):
        part = raw[start : start + _HEX_ROW]
        shown = "".join(chr(each) if 32 <= each < 127 else "·" for each in part)  # noqa: PLR2004 - printable ASCII
        rows.append(f"{start:06x}  {part.hex(' '):<{3 * _HEX_ROW - 1}}  {shown}")
    return "\n".join(rows) + ("\n…" if len(raw) > _MOST_HEX else "")


def cut(text: str) -> str:
    """Return as much of a text as a page shows."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}\n… cut after {size(MOST_SHOWN)}"


def plain_json(value: Any) -> str:
    """Return a value as JSON on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def pretty_json(value: Any) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, default=str, indent=2)
