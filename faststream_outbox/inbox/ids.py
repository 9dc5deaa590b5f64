"""By what a message is known when it comes again."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from faststream.message import StreamMessage

from faststream_outbox.envelope import MESSAGE_ID, OUTBOX_ID, row_identity
from faststream_outbox.storage import OutboxRow
from faststream_outbox.storage.checks import check_message_id

MessageId = str | int | None
GetMessageId = Callable[[StreamMessage[Any]], MessageId | Awaitable[MessageId]]


async def find_message_id(message: StreamMessage[Any], get: GetMessageId | None) -> str:
    """Return the id that a message has at each of its deliveries: the user's word, a relay's, or the sender's.

    `message.message_id` alone will not do. FastStream makes it up where the sender gave none: anew at each delivery, or
    of a Kafka offset, which another partition has too.
    """
    if message.batch_headers or isinstance(message.raw_message, list | tuple):
        raise RuntimeError(
            "The inbox records one message at a time, and this is a batch, of which a part may come again: "
            "subscribe without batches."
        )
    found: object = None
    if get is not None:
        answer = get(message)
        found = await answer if inspect.isawaitable(answer) else answer
    for look in (_relayed, _sent):
        found = look(message) if found is None else found
    if found is None:
        raise LookupError(
            f"This {type(message).__name__} has no id that would be the same if it came again: neither a header "
            f"{OUTBOX_ID!r} nor an id that its sender gave. Publish it with a header {MESSAGE_ID!r} (on RabbitMQ with "
            "message_id=…), or tell the inbox what it is known by: Inbox(…, message_id=lambda message: …)."
        )
    return check_message_id(found)


def _relayed(message: StreamMessage[Any]) -> object:
    return message.headers.get(OUTBOX_ID)


def _sent(message: StreamMessage[Any]) -> object:
    raw = message.raw_message
    if isinstance(raw, OutboxRow):
        return row_identity(raw)
    # RabbitMQ has a property for it. A mapping is what Redis gives, and has none.
    from_broker = None if isinstance(raw, Mapping) else getattr(raw, MESSAGE_ID, None)
    return message.headers.get(MESSAGE_ID) or from_broker or None
