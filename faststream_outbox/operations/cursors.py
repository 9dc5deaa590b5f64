"""Where a list goes on, as a text that callers give back and cannot mistake for that of another list."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64Error
from zlib import crc32

from faststream_outbox.storage.operating.reads import Position


def write_cursor(position: Position | None, *asked: object) -> str | None:
    """Return a position as text; None at the end of a list. `asked` is what the list was asked for."""
    if position is None:
        return None
    return urlsafe_b64encode(json.dumps([_digest(asked), *position]).encode()).decode().rstrip("=")


def read_cursor(cursor: object, *asked: object) -> Position | None:
    """Return the position of a cursor; raise `ValueError` for one that is damaged, or of another list."""
    if cursor is None:
        return None
    if not isinstance(cursor, str):
        raise TypeError(f"after is the `after` of a page, a str, not {type(cursor).__name__}.")
    try:
        found = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (NotBase64Error, ValueError):
        found = None
    if not isinstance(found, list) or not found or found[0] != _digest(asked):
        raise ValueError(f"after is not of a page of this list: {cursor[:40]!r}. Give the same filter as before.")
    return tuple(found[1:])


def _digest(asked: tuple[object, ...]) -> int:
    return crc32(repr(asked).encode(errors="replace"))
