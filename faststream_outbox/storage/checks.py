"""Check values before they reach Postgres: an error inside a transaction would abort it."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from faststream_outbox.storage.parking import PARKED
from faststream_outbox.storage.schema.tables import MAX_MESSAGE_ID_BYTES, MAX_NAME_CHARS

# A longer delay is a mistake in the unit. Near the end of Postgres' calendar it would abort the transaction.
MAX_DELAY: Final = timedelta(days=36_525)

# A message to Postgres has 1 GiB at most, and a driver may send two characters for a byte.
MAX_PAYLOADS: Final = 500_000_000

# Enough for a sentence or two and a link.
MAX_REASON_CHARS: Final = 1000

# Made once: `json.dumps` with other options than its defaults makes one at each call.
_ENCODER: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False)

# A whole number of up to about thirty digits is shown as it is.
_MOST_SHOWN_BITS: Final = 100


def check_name(what: str, value: object) -> str:
    """Return a queue name, timer id or ordering key that fits its column."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}: {value!r}.")
    if not value:
        raise ValueError(f"{what} is empty: give it a name.")
    if len(value) > MAX_NAME_CHARS:
        raise ValueError(f"{what} has {len(value)} characters and the column holds {MAX_NAME_CHARS}: {value[:40]!r}…")
    _check_text(what, value)
    return value


def check_reason(value: object) -> str:
    """Return the reason that an operator gives, which is stored with a row."""
    if not isinstance(value, str):
        raise TypeError(f"reason is a str, not {type(value).__name__}: {value!r}.")
    if not value.strip():
        raise ValueError("reason is empty: say why, for the next person who reads it.")
    if len(value) > MAX_REASON_CHARS:
        raise ValueError(f"reason has {len(value)} characters, and {MAX_REASON_CHARS} are kept: say it in fewer.")
    _check_text("reason", value)
    return value


def check_message_id(value: object) -> str:
    """Return the id of a message as an inbox stores it; a whole number becomes text."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise TypeError(f"A message's id is a str or an int, not {type(value).__name__}: {value!r}.")
    if not value:
        raise ValueError("A message's id is empty, and an empty one stands for no message.")
    _check_text("A message's id", value)
    if len(value.encode()) > MAX_MESSAGE_ID_BYTES:
        raise ValueError(
            f"A message's id has {len(value.encode())} bytes and the inbox takes {MAX_MESSAGE_ID_BYTES}: "
            f"return a hash of it from Inbox(message_id=…). It begins with {value[:40]!r}."
        )
    return value


def check_payload(value: object) -> bytes:
    """Return the payload as `bytes`."""
    if not isinstance(value, bytes):
        if not isinstance(value, bytearray | memoryview):
            raise TypeError(f"The payload is bytes, not {type(value).__name__}: encode the body first.")
        value = bytes(value)
    if len(value) > MAX_PAYLOADS:
        raise _too_large("The payload has", len(value), "Store it elsewhere, and publish where it is.")
    return value


def check_payloads(payloads: Iterable[bytes]) -> None:
    """Raise unless these payloads fit into one statement."""
    if (size := sum(map(len, payloads))) > MAX_PAYLOADS:
        raise _too_large("The payloads of the batch have", size, "Publish them in several batches.")


def check_collected(size: int) -> None:
    """Raise unless payloads of this size, all that a transaction has collected, fit into one statement."""
    if size > MAX_PAYLOADS:
        raise _too_large("What this transaction has collected has", size, "Collect less, or publish it in batches.")


def check_answers(payloads: Iterable[bytes]) -> None:
    """Raise unless these payloads, all that one call of a handler answers, fit into one statement."""
    if (size := sum(map(len, payloads))) > MAX_PAYLOADS:
        raise _too_large("The answers of one call have", size, "Answer where the result is stored, or a part of it.")


def _too_large(what: str, size: int, advice: str) -> ValueError:
    return ValueError(f"{what} {size:,} bytes, and one statement takes {MAX_PAYLOADS:,}. {advice}")


def encode_headers(headers: Mapping[str, Any] | None) -> str | None:
    """Encode headers as the JSON object that a `jsonb` column takes."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers is a mapping of names to values, not {type(headers).__name__}.")
    for name in headers:
        if not isinstance(name, str):
            raise TypeError(f"A header's name is a str, not {type(name).__name__}: {name!r}.")
    if PARKED in headers:
        raise ValueError(f"headers[{PARKED!r}] is where the outbox keeps why a key is parked: choose another name.")
    try:
        for text in _texts(headers):
            _check_text("A header", text)
    except RecursionError as error:
        raise ValueError("headers hold themselves, or are nested too deeply to be stored.") from error
    try:
        return _ENCODER.encode(dict(headers))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"headers cannot be stored as JSON: {error}. Use strings, finite numbers, booleans, None."
        ) from error


def check_schedule(activate_in: timedelta | None, activate_at: datetime | None) -> tuple[float | None, float | None]:
    """Return (delay in seconds, instant as epoch seconds); at most one is set."""
    if activate_in is not None and activate_at is not None:
        raise ValueError("Give activate_in or activate_at, not both.")
    if activate_in is not None:
        if not isinstance(activate_in, timedelta):
            raise TypeError(f"activate_in is a timedelta, not {type(activate_in).__name__}: timedelta(seconds=…).")
        if not timedelta(0) <= activate_in <= MAX_DELAY:
            raise ValueError(f"activate_in lies between 0 and {MAX_DELAY.days} days, and {activate_in!r} does not.")
        return activate_in.total_seconds(), None
    if activate_at is not None:
        check_time("activate_at", activate_at)
        # A difference of aware datetimes is right even if one of them has no UTC date in the calendar.
        return None, (activate_at - _EPOCH) / timedelta(seconds=1)
    return None, None


def check_time(what: str, value: object) -> None:
    """Raise for a value that is not an instant."""
    if not isinstance(value, datetime):
        raise TypeError(f"{what} is a datetime, not {type(value).__name__}.")
    if value.utcoffset() is None:
        raise ValueError(f"{what} has no time zone: {value!r}. Use datetime(…, tzinfo=UTC).")
    if value.replace(tzinfo=None) in (datetime.min, datetime.max):  # noqa: DTZ901 - these are what is refused
        raise ValueError(f"{what} is {value!r}, which stands for no instant. Leave it out to send now.")


def check_number(what: str, value: object, *, least: float = 0.0, most: float = math.inf) -> float:
    """Return a finite number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is a number, not {type(value).__name__}: {value!r}.")
    try:
        number = float(value)
    except OverflowError:  # a whole number may be larger than any float
        number = math.inf
    if not math.isfinite(number) or not least <= number <= most:
        end = "up" if most == math.inf else f"to {most:g}"
        raise ValueError(f"{what} is a finite number from {least:g} {end}, not {_shown(value)}.")
    return number


def check_count(what: str, value: object, *, most: int | None = None, instead: str = "") -> int:
    """Return a whole number from 1 up, to `most` if that is given; `instead` says what to do in place of more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is a whole number, not {type(value).__name__}: {value!r}.")
    if value < 1:
        raise ValueError(f"{what} is 1 or more, not {_shown(value)}.")
    if most is not None and value > most:
        raise ValueError(f"{what} is {most} at most, not {_shown(value)}: {instead}.")
    return value


def _shown(value: float) -> str:
    """Return a number for an error; of a huge one only its size, because Python refuses to print some of them."""
    if isinstance(value, int) and value.bit_length() > _MOST_SHOWN_BITS:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    return repr(value)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _check_text(what: str, value: str) -> None:
    if "\x00" in value:
        raise ValueError(f"{what} holds a NUL character, which Postgres cannot store: {value[:40]!r}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds a lone surrogate, which Postgres cannot store: {value[:40]!r}.") from error


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
