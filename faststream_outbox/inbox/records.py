"""Records of handled messages: by which id a message is known, how its record is written, and when it is deleted."""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from faststream.message import StreamMessage

from faststream_outbox._faststream import LoggerProto
from faststream_outbox.envelope import MESSAGE_ID, OUTBOX_ID, row_identity
from faststream_outbox.inbox.consumer import Consumer
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage import OutboxRow
from faststream_outbox.storage.checks import check_message_id
from faststream_outbox.storage.postgres.inbox import InboxStore, InboxTransaction

MessageId = str | int | None
GetMessageId = Callable[[StreamMessage[Any]], MessageId | Awaitable[MessageId]]

# Records deleted by one statement, which then takes some milliseconds.
_CLEAN_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class InboxRecords:
    """The table of an inbox, with the rules by which records are written and deleted."""

    store: InboxStore
    retention: timedelta
    get_message_id: GetMessageId | None
    clean_interval: timedelta | None

    async def begin(
        self, consumer: Consumer, message: StreamMessage[Any], logger: LoggerProto | None
    ) -> InboxTransaction | None:
        """Open the transaction that records a message; return None if it was handled before."""
        message_id = await find_message_id(message, self.get_message_id)
        transaction = await self.store.begin(consumer.name, message_id)
        if transaction is None and logger is not None:
            text = f"Skipped message {message_id!r}: consumer {consumer.name!r} has handled it before."
            monitor = Monitor(get_logger=lambda: logger)
            monitor.report("inbox_skipped", text, level=logging.INFO, consumer=consumer.name, inbox_id=message_id)
        return transaction

    async def clean_batch(self, consumer: Consumer) -> int:
        """Delete some records of a consumer that are older than the retention; return how many."""
        return await self.store.clean(consumer.name, retention=self.retention, limit=_CLEAN_BATCH)

    async def clean_when_due(self, consumer: Consumer, logger: LoggerProto | None) -> None:
        """Delete a batch of old records if the interval has passed; log a failure and go on."""
        if self.clean_interval is None or time.monotonic() < consumer.clean_at:
            return
        # Set first, so that messages handled at the same time do not clean too.
        consumer.clean_at = time.monotonic() + self.clean_interval.total_seconds()
        try:
            if await self.clean_batch(consumer) == _CLEAN_BATCH:
                consumer.clean_at = time.monotonic()  # there is more: the next commit goes on
        except Exception as error:  # noqa: BLE001 - the message is handled and committed
            if logger is not None:
                text = f"Could not delete old records of {consumer.name!r}; tried again later: {describe(error)}"
                Monitor(get_logger=lambda: logger).report("inbox_clean_failed", text, consumer=consumer.name)


async def find_message_id(message: StreamMessage[Any], get: GetMessageId | None) -> str:
    """Return the id that a message has at each of its deliveries: from the user's function, a relay, or the sender.

    `message.message_id` is not enough. Without an id of the sender FastStream generates it: a new one at each delivery,
    or from a Kafka offset, which another partition has too.
    """
    if message.batch_headers or isinstance(message.raw_message, list | tuple):
        raise RuntimeError(
            "An inbox records single messages, and this is a batch, of which a part may be delivered again: "
            "subscribe without batches."
        )
    found: Any = None if get is None else get(message)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        found = message.headers.get(OUTBOX_ID)
    if found is None:
        found = _sender_id(message)
    if found is None:
        raise LookupError(
            f"This {type(message).__name__} has no id that stays the same when it is delivered again: neither a header "
            f"{OUTBOX_ID!r} nor an id of its sender. Publish it with a header {MESSAGE_ID!r} (on RabbitMQ with "
            "message_id=…), or give the inbox a function: Inbox(…, message_id=lambda message: …)."
        )
    return check_message_id(found)


def _sender_id(message: StreamMessage[Any]) -> object:
    raw = message.raw_message
    if isinstance(raw, OutboxRow):
        return row_identity(raw)
    # RabbitMQ has a property for the id; the raw message of Redis is a mapping and has none.
    from_broker = None if isinstance(raw, Mapping) else getattr(raw, MESSAGE_ID, None)
    return message.headers.get(MESSAGE_ID) or from_broker or None
