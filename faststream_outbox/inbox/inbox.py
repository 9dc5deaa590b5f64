"""The inbox: what a user makes once and gives to brokers, routers or subscribers as a middleware."""

import logging
import time
from datetime import timedelta
from typing import Any, Final, Self

from faststream import AckPolicy, ContextRepo
from faststream.message import StreamMessage
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from faststream_outbox._faststream import LoggerProto
from faststream_outbox.inbox.consumer import Consumer, derived_consumer
from faststream_outbox.inbox.ids import GetMessageId, find_message_id
from faststream_outbox.inbox.middleware import InboxMiddleware
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage.checks import MAX_DELAY
from faststream_outbox.storage.postgres.inbox import InboxStore, InboxTransaction

# Deleted at a time: some milliseconds' work.
_CLEAN_BATCH: Final = 1000


class Inbox:
    """Has each message handled once by a consumer, however often a broker delivers it.

    `consumer` names the handler, in the table and for good. An inbox with a name serves one handler (see `named`), or
    of two that receive the same message one would skip it. Without a name it serves any number, each under a name of
    its own: that of the function, with its module, and of the place it listens to (`service.bill@orders`). What is
    older than `retention` is forgotten; a message that comes again after that is handled again. `message_id` tells what
    a message is known by, instead of the id that a relay or its sender gave it, which counts where it returns None.
    Every `clean_interval`, after a commit, some of the old records are deleted; None: never.

    Example:
        inbox = Inbox(engine, table=inbox_table)
        broker = KafkaBroker(middlewares=[inbox])

        @broker.subscriber("orders", group_id="billing", ack_policy=AckPolicy.NACK_ON_ERROR)
        async def bill(order: Order, session: InboxSession) -> None:
            session.add(Invoice(order_id=order.id))

    """

    def __init__(
        self,
        engine: AsyncEngine | async_sessionmaker[Any],
        *,
        table: Table,
        consumer: str | None = None,
        # A week: longer than a broker that was down over a weekend takes to deliver again.
        retention: timedelta = timedelta(days=7),
        message_id: GetMessageId | None = None,
        clean_interval: timedelta | None = timedelta(minutes=10),
    ) -> None:
        self._store = InboxStore(engine, table)
        self._retention = _check_time("retention", retention)
        if message_id is not None and not callable(message_id):
            raise TypeError(f"message_id is a function of the message, not {type(message_id).__name__}.")
        self._message_id = message_id
        self._clean_interval = None if clean_interval is None else _check_time("clean_interval", clean_interval)
        self._take_name(consumer)

    def _take_name(self, consumer: str | None) -> None:
        self.consumer = consumer
        self._named = None if consumer is None else Consumer(consumer)
        self._served: dict[str, Consumer] = {} if self._named is None else {self._named.name: self._named}

    def named(self, consumer: str) -> Self:
        """Make an inbox for another consumer, the same in all else.

        Example:
            audit = inbox.named("audit")

        """
        sibling = object.__new__(type(self))
        sibling.__dict__.update(self.__dict__)
        sibling._take_name(consumer)
        return sibling

    def __call__(self, msg: Any, /, *, context: ContextRepo) -> InboxMiddleware:
        """Make the middleware of one delivery: FastStream calls this."""
        return InboxMiddleware(self, msg, context=context)

    async def begin(
        self, consumer: Consumer, message: StreamMessage[Any], logger: LoggerProto | None
    ) -> InboxTransaction | None:
        """Open the transaction in which a message is handled; None if it was handled before."""
        message_id = await find_message_id(message, self._message_id)
        transaction = await self._store.begin(consumer.name, message_id)
        if transaction is None and logger is not None:
            text = f"Skipped message {message_id!r}: {consumer.name!r} has handled it before."
            monitor = Monitor(get_logger=lambda: logger)
            monitor.report("inbox_skipped", text, level=logging.INFO, consumer=consumer.name, inbox_id=message_id)
        return transaction

    async def clean(self) -> int:
        """Delete all records of its consumer that are older than the retention, in small batches; return how many.

        An inbox without a name does so for the handlers that it has served in this process.

        Example:
            await inbox.clean()  # from a scheduler, where no messages come for long

        """
        total = 0
        for consumer in list(self._served.values()):
            while count := await self._clean_batch(consumer):
                total += count
        return total

    async def clean_when_due(self, consumer: Consumer, logger: LoggerProto | None) -> None:
        """Delete a batch of old records if it is time to; a failure is said and no more."""
        if self._clean_interval is None or time.monotonic() < consumer.clean_at:
            return
        # Set first: whoever comes meanwhile has nothing to do.
        consumer.clean_at = time.monotonic() + self._clean_interval.total_seconds()
        try:
            if await self._clean_batch(consumer) == _CLEAN_BATCH:
                consumer.clean_at = time.monotonic()  # there is more, for the next commit
        except Exception as error:  # noqa: BLE001 - the message was handled, whatever this was
            if logger is not None:
                text = f"Could not delete old records of {consumer.name!r}; tried again later: {describe(error)}"
                Monitor(get_logger=lambda: logger).report("inbox_clean_failed", text, consumer=consumer.name)

    async def _clean_batch(self, consumer: Consumer) -> int:
        return await self._store.clean(consumer.name, retention=self._retention, limit=_CLEAN_BATCH)

    async def validate_schema(self) -> None:
        """Raise one `RuntimeError` that lists all that the live table lacks, with the DDL that mends it."""
        await self._store.validate_schema()

    def consumer_of(self, subscriber: Any) -> Consumer:
        """Tell under which name a subscriber's messages are recorded; refuse one that would lose some."""
        if subscriber.ack_policy is AckPolicy.ACK_FIRST:
            raise RuntimeError(
                "This subscriber acks a message before it is handled, so one that fails is lost and the inbox is of no "
                "use: declare it with ack_policy=AckPolicy.NACK_ON_ERROR."
            )
        consumer = self._named or derived_consumer(self._store.table, subscriber)
        consumer.serve(subscriber)
        self._served[consumer.name] = consumer
        return consumer


def _check_time(what: str, value: object) -> timedelta:
    if not isinstance(value, timedelta):
        raise TypeError(f"{what} is a timedelta, not {type(value).__name__}: timedelta(days=…).")
    if not timedelta(0) < value <= MAX_DELAY:
        raise ValueError(f"{what} lies between 0 and {MAX_DELAY.days} days, and {value!r} does not.")
    return value
