"""The message that a relay makes of a row: the payload unchanged, and headers that identify the row."""

from dataclasses import dataclass
from datetime import UTC, datetime

from faststream_outbox.envelope import (
    CONTENT_TYPE,
    CORRELATION_ID,
    MESSAGE_ID,
    OUTBOX_ID,
    relay_headers,
    row_identity,
    sent_correlation_id,
    text_headers,
)
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

    @property
    def size(self) -> int:
        """How many bytes the payload and the headers have, about."""
        return len(self.payload) + sum(map(len, self.headers)) + sum(map(len, self.headers.values()))


def make_outgoing(row: OutboxRow, destination: str, *, source: str, cloudevents: bool) -> Outgoing:
    """Make the message of a row; it is the same each time."""
    own = relay_headers(row, source=source)
    message_id = own[OUTBOX_ID]
    headers = text_headers(row.headers or {}) | own
    if cloudevents:
        headers |= _cloudevents_headers(row, source)
    headers[MESSAGE_ID] = message_id
    correlation_id = headers[CORRELATION_ID] = sent_correlation_id(headers, message_id)
    return Outgoing(destination, row.payload, headers, row.entity_key, message_id, correlation_id)


def _cloudevents_headers(row: OutboxRow, source: str) -> dict[str, str]:
    """Return the headers of CloudEvents 1.0 in binary mode: the type is the header `ce_type` or else the queue."""
    own = row.headers or {}
    headers = {
        "ce_specversion": "1.0",
        "ce_id": row_identity(row),
        "ce_source": source,
        "ce_type": str(own.get("ce_type", row.queue)),
        "ce_time": datetime.fromtimestamp(row.created_epoch, UTC).isoformat(),
    }
    if row.entity_key is not None:
        headers["ce_subject"] = row.entity_key
    if (content_type := own.get(CONTENT_TYPE)) is not None:
        headers["ce_datacontenttype"] = str(content_type)
    return headers
