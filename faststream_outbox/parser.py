"""From a row to a message: FastStream's parser and decoder for the outbox."""

from typing import Any

from faststream.message import StreamMessage, decode_message

from faststream_outbox.envelope import CONTENT_TYPE, CORRELATION_ID, REPLY_TO
from faststream_outbox.message import OutboxDelivery, OutboxMessage


class OutboxParser:
    """Reads what the envelope wrote, and what others may have written by hand."""

    @staticmethod
    async def parse_message(message: OutboxDelivery) -> OutboxMessage:
        """Make a message of a row."""
        headers = message.headers or {}
        row_id = str(message.id)
        return OutboxMessage(
            message,
            message.payload,
            headers=headers,
            content_type=_text(headers.get(CONTENT_TYPE)),
            correlation_id=_text(headers.get(CORRELATION_ID)) or row_id,
            reply_to=_text(headers.get(REPLY_TO)) or "",
            message_id=row_id,
        )

    @staticmethod
    async def decode_message(message: StreamMessage[Any]) -> Any:
        """Decode a body as FastStream does, by its content type."""
        return decode_message(message)


def _text(value: object) -> str | None:
    # Rows are written by others too, and a header may be anything that JSON knows.
    return value if isinstance(value, str) else None
