"""A message on its way into a row: its body and headers, encoded and checked before any transaction is touched."""

from collections.abc import Mapping
from typing import Any, Final

# The names under which a row's headers hold what FastStream keeps apart from them.
CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"

# Under this name a relay sends the id of the row along: it stays the same however often the row is relayed.
OUTBOX_ID: Final = "outbox_id"
# And under this one FastStream's brokers look for an id that the sender gave.
MESSAGE_ID: Final = "message_id"


def seal(
    headers: Mapping[str, Any] | None, *, content_type: str | None, correlation_id: str | None, reply_to: str | None
) -> dict[str, Any] | None:
    """Put what FastStream keeps apart from the headers among them; None when there is nothing at all.

    No correlation id is made up here: a message without one is known by its row's id, which costs no space.
    """
    sealed = dict(headers or {})
    _put(sealed, CONTENT_TYPE, content_type, "Leave it out of headers, or give the body as bytes to label it yourself.")
    _put(sealed, CORRELATION_ID, correlation_id, "Give it once, as correlation_id=….")
    _put(sealed, REPLY_TO, reply_to, "Give it once, as reply_to=….")
    return sealed or None


def _put(headers: dict[str, Any], name: str, value: str | None, advice: str) -> None:
    if not value:
        return
    if headers.setdefault(name, value) != value:
        raise ValueError(f"headers[{name!r}] is {headers[name]!r} where {value!r} belongs. {advice}")
