"""From rows to messages: FastStream's parsers and decoders for the outbox."""

from dataclasses import dataclass
from typing import Any

from faststream.message import StreamMessage, decode_message

from faststream_outbox.envelope import CONTENT_TYPE, CORRELATION_ID, REPLY_TO
from faststream_outbox.message import OutboxBatchMessage, OutboxDelivery, OutboxMessage


class OutboxParser:
    """Reads what the envelope wrote, and what others may have written by hand."""

    @staticmethod
    async def parse_message(message: OutboxDelivery) -> OutboxMessage:
        """Make a message of a row."""
        return _open(message, message.headers or {})

    @staticmethod
    async def decode_message(message: StreamMessage[Any]) -> Any:
        """Decode a body as FastStream does, by its content type."""
        return decode_message(message)


class OutboxBatchParser:
    """The same for rows that are handled together."""

    @staticmethod
    async def parse_batch(message: tuple[OutboxDelivery, ...]) -> OutboxBatchMessage:
        """Make one message of several rows; what it has once, it has from the first."""
        first, last = message[0], message[-1]
        # FastStream's traces link to those of a batch that have a correlation id.
        batch_headers = [{CORRELATION_ID: str(row.id), **(row.headers or {})} for row in message]
        headers = batch_headers[0]
        return OutboxBatchMessage(
            message,
            [row.payload for row in message],
            headers=headers,
            batch_headers=batch_headers,
            content_type=_text(headers.get(CONTENT_TYPE)),
            correlation_id=_text(headers.get(CORRELATION_ID)) or str(first.id),
            reply_to=_text(headers.get(REPLY_TO)) or "",
            message_id=f"{first.id}-{last.id}",
            open_messages=lambda: [_open(row, row.headers or {}) for row in message],
        )

    @staticmethod
    async def decode_batch(message: StreamMessage[Any]) -> list[Any]:
        """Decode every body, by its own content type."""
        decode: Any = decode_message  # it asks for no more of a message than `_Body` has
        bodies = zip(message.body, message.batch_headers, strict=True)
        return [decode(_Body(body, _text(headers.get(CONTENT_TYPE)))) for body, headers in bodies]


@dataclass(slots=True)
class _Body:
    """As much of a message as its decoding needs."""

    body: bytes
    content_type: str | None


def _open(row: OutboxDelivery, headers: dict[str, Any]) -> OutboxMessage:
    row_id = str(row.id)
    message = OutboxMessage(
        row,
        row.payload,
        headers=headers,
        content_type=_text(headers.get(CONTENT_TYPE)),
        correlation_id=_text(headers.get(CORRELATION_ID)) or row_id,
        reply_to=_text(headers.get(REPLY_TO)) or "",
        message_id=row_id,
    )
    message.set_decoder(OutboxParser.decode_message)
    return message


def _text(value: object) -> str | None:
    # Rows are written by others too, and a header may be anything that JSON knows.
    return value if isinstance(value, str) else None
