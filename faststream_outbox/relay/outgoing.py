"""The message that a relay makes of a row: the payload unchanged, and headers that identify the row."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from faststream_outbox.envelope import CORRELATION_ID, MESSAGE_ID, OUTBOX_ID, relay_headers, row_identity, text_headers
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


# Returns further headers for a row.
ExtraHeaders = Callable[[OutboxRow], dict[str, str]]


def make_outgoing(row: OutboxRow, destination: str, *, source: str, extra: ExtraHeaders | None = None) -> Outgoing:
    """Make the message of a row; it is the same each time."""
    own = relay_headers(row, source=source)
    message_id = own[OUTBOX_ID]
    headers = text_headers(row.headers or {}) | own
    if extra is not None:
        headers |= extra(row)
    headers[MESSAGE_ID] = message_id
    correlation_id = headers.setdefault(CORRELATION_ID, message_id)
    return Outgoing(destination, row.payload, headers, row.entity_key, message_id, correlation_id)


def cloudevents_headers(source: str) -> ExtraHeaders:
    """Return a function that makes the headers of CloudEvents 1.0 (binary mode) for a row.

    The type is the row's header `ce_type`, or its queue; the subject is its key.
    """

    def headers(row: OutboxRow) -> dict[str, str]:
        own = row.headers or {}
        made = {
            "ce_specversion": "1.0",
            "ce_id": row_identity(row),
            "ce_source": source,
            "ce_type": str(own.get("ce_type", row.queue)),
            "ce_time": datetime.fromtimestamp(row.created_epoch, UTC).isoformat(),
        }
        if row.entity_key is not None:
            made["ce_subject"] = row.entity_key
        if (content_type := own.get("content-type")) is not None:
            made["ce_datacontenttype"] = str(content_type)
        return made

    return headers
