"""From rows to messages: FastStream's parsers and decoders for the outbox."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

from faststream_outbox._faststream import ContentTypes, json_loads
from faststream_outbox.envelope import CONTENT_TYPE, CORRELATION_ID, REPLY_TO
from faststream_outbox.message import OutboxBatchMessage, OutboxDelivery, OutboxMessage

try:
    from pydantic_core import from_json
except ImportError:  # of before pydantic 2.5
    from_json = json_loads

# FastStream reads with the standard library, or with orjson where that is installed. Where it is the former, what
# pydantic reads with comes to the same values four times as fast; what it refuses is read once more.
_QUICKEST: Final[Callable[[bytes], Any]] = from_json if json_loads is json.loads else json_loads


class OutboxParser:
    """Reads what the envelope wrote, and what others may have written by hand."""

    @staticmethod
    async def parse_message(message: OutboxDelivery) -> OutboxMessage:
        """Make a message of a row."""
        return open_message(message)

    @staticmethod
    async def decode_message(message: StreamMessage[Any]) -> Any:
        """Decode a body as FastStream does, by its content type."""
        return _decode(message.body, message.content_type)


class OutboxBatchParser:
    """The same for rows that are handled together."""

    @staticmethod
    async def parse_batch(message: tuple[OutboxDelivery, ...]) -> OutboxBatchMessage:
        """Make one message of several rows; what it has once, it has from the first."""
        first, last = message[0], message[-1]
        batch_headers = [_headers_in_batch(row) for row in message]
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
            open_messages=lambda: [_open_alone(row) for row in message],
        )

    @staticmethod
    async def decode_batch(message: StreamMessage[Any]) -> list[Any]:
        """Decode every body, by its own content type."""
        bodies = zip(message.body, message.batch_headers, strict=True)
        return [_decode(body, headers.get(CONTENT_TYPE)) for body, headers in bodies]


def _headers_in_batch(row: OutboxDelivery) -> dict[str, Any]:
    headers = row.headers or {}
    # FastStream's traces link to those of a batch that have a correlation id.
    headers.setdefault(CORRELATION_ID, str(row.id))
    return headers


_JSON: Final = ContentTypes.JSON.value


def _decode(body: bytes, content_type: object) -> Any:
    if content_type == _JSON:
        return _read_json(body)  # what FastStream comes to as well, and nearly every body is
    decode: Any = decode_message  # it asks for no more of a message than `_Body` has
    return decode(_Body(body, _text(content_type)))


def _read_json(body: bytes) -> Any:
    try:
        return _QUICKEST(body)
    except (TypeError, ValueError):
        pass  # and the error is told as if this had not been tried
    return json_loads(body)


@dataclass(slots=True)
class _Body:
    """As much of a message as its decoding needs."""

    body: bytes
    content_type: str | None


def open_message(row: OutboxDelivery) -> OutboxMessage:
    """Make a message of a row."""
    row_id, headers = str(row.id), row.headers or {}
    return OutboxMessage(
        row,
        row.payload,
        headers=headers,
        content_type=_text(headers.get(CONTENT_TYPE)),
        correlation_id=_text(headers.get(CORRELATION_ID)) or row_id,
        reply_to=_text(headers.get(REPLY_TO)) or "",
        message_id=row_id,
    )


def _open_alone(row: OutboxDelivery) -> OutboxMessage:
    """Make a message of one row of a batch; nobody else will tell it how it is decoded."""
    message = open_message(row)
    message.set_decoder(OutboxParser.decode_message)
    return message


def _text(value: object) -> str | None:
    # Rows are written by others too, and a header may be anything that JSON knows.
    return value if isinstance(value, str) else None
