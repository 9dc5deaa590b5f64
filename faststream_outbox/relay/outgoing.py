"""What of a row goes on: its bytes as they are, and headers that tell who it is."""

from collections.abc import Callable
from dataclasses import dataclass

from faststream_outbox.envelope import CORRELATION_ID, MESSAGE_ID, relay_headers
from faststream_outbox.storage import OutboxRow


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message for another broker."""

    destination: str
    payload: bytes
    headers: dict[str, str]
    key: str | None
    message_id: str
    correlation_id: str


# What else is said of a row in its headers.
ExtraHeaders = Callable[[OutboxRow], dict[str, str]]


def make_outgoing(row: OutboxRow, destination: str, *, source: str, extra: ExtraHeaders | None = None) -> Outgoing:
    """Make a message of a row; made again, it is the same."""
    own = relay_headers(row, source=source)
    message_id = own["outbox_id"]
    headers = {name: _text(value) for name, value in (row.headers or {}).items() if value is not None}
    headers |= own
    if extra is not None:
        headers |= extra(row)
    headers[MESSAGE_ID] = message_id
    correlation_id = headers.setdefault(CORRELATION_ID, message_id)
    return Outgoing(destination, row.payload, headers, row.entity_key, message_id, correlation_id)


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)
