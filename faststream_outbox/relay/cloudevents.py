"""Headers after CloudEvents 1.0, in its binary mode: for consumers that look for them."""

from datetime import UTC, datetime

from faststream_outbox.envelope import row_identity
from faststream_outbox.relay.outgoing import ExtraHeaders
from faststream_outbox.storage import OutboxRow


def cloudevents_headers(source: str) -> ExtraHeaders:
    """Name a row as an event: its queue is the type, unless a header `ce_type` says otherwise, its key the subject."""

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
