"""Makes messages of rows: the outbox's parser and decoder for FastStream."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

from faststream_outbox._faststream import ContentTypes, json_loads
from faststream_outbox.envelope import CONTENT_TYPE, CORRELATION_ID, REPLY_TO
from faststream_outbox.message import OutboxBatchMessage, OutboxDelivery, OutboxMessage

try:
    from pydantic_core import from_json
except ImportError:  # pydantic before 2.5
    from_json = json_loads

# FastStream reads JSON with orjson, or else with the standard library. Pydantic's reader returns the same values four
# times as fast as the latter; what it rejects is read again by FastStream's.
_fast_loads: Final[Callable[[bytes], Any]] = from_json if json_loads is json.loads else json_loads


class OutboxParser:
    """Reads rows: those of our publishers, and those that other programs inserted."""

    @staticmethod
    async def parse_message(message: OutboxDelivery) -> OutboxMessage:
        """Return the message of a row."""
        return open_message(message)

    @staticmethod
    async def decode_message(message: StreamMessage[Any]) -> Any:
        """Decode a body as FastStream does, by its content type."""
        return _decode(message.body, message.content_type)


class OutboxBatchParser:
    """Reads the rows of a batch."""

    @staticmethod
    async def parse_batch(message: tuple[OutboxDelivery, ...]) -> OutboxBatchMessage:
        """Return one message of several rows; its headers, correlation id and reply_to are those of the first row."""
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
        """Decode each body by its own content type."""
        bodies = zip(message.body, message.batch_headers, strict=True)
        return [_decode(body, headers.get(CONTENT_TYPE)) for body, headers in bodies]


def _headers_in_batch(row: OutboxDelivery) -> dict[str, Any]:
    headers = row.headers or {}
    # FastStream's traces link only to messages of a batch that have a correlation id.
    headers.setdefault(CORRELATION_ID, str(row.id))
    return headers


_JSON: Final = ContentTypes.JSON.value


def _decode(body: bytes, content_type: object) -> Any:
    if content_type == _JSON:
        return _read_json(body)  # as FastStream does, with fewer steps; nearly every body is JSON
    message: Any = SimpleNamespace(body=body, content_type=_text(content_type))  # FastStream reads no more of it
    return decode_message(message)


def _read_json(body: bytes) -> Any:
    try:
        return _fast_loads(body)
    except (TypeError, ValueError):
        pass  # outside `except`, so that the error below has no context
    return json_loads(body)


def open_message(row: OutboxDelivery) -> OutboxMessage:
    """Return the message of a row."""
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
    """Return the message of one row of a batch, with its decoder, which FastStream sets on whole batches only."""
    message = open_message(row)
    message.set_decoder(OutboxParser.decode_message)
    return message


def _text(value: object) -> str | None:
    # Other programs insert rows too, and a header may be any JSON.
    return value if isinstance(value, str) else None
