"""The inbox: made once, and given to brokers, routers or subscribers as a middleware."""

from datetime import timedelta
from typing import Any, Self

from faststream import AckPolicy, ContextRepo
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from faststream_outbox.inbox.consumer import Consumer, derived_consumer
from faststream_outbox.inbox.middleware import InboxMiddleware
from faststream_outbox.inbox.records import GetMessageId, InboxRecords
from faststream_outbox.storage.checks import MAX_DELAY
from faststream_outbox.storage.postgres.inbox import InboxStore


class Inbox:
    """Lets a consumer handle each message once, however often a broker delivers it.

    Args:
        engine: The database, or a session factory of it.
        table: The table of the records, from `make_inbox_table`.
        consumer: The name of the handler in the table; never change it. A named inbox serves one handler (see `named`):
            if two handlers received the same message, one would skip it. Without a name an inbox serves any number of
            handlers, each under its function's name, module and destination (`service.bill@orders`).
        retention: How long a record is kept; a message that is delivered again after that is handled again.
        message_id: Returns the id of a message; where it returns None, the id of a relay or of the sender is used.
        clean_interval: How often some old records are deleted, after a commit; None for never.

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
        # A week: a broker that was down over a weekend delivers again within it.
        retention: timedelta = timedelta(days=7),
        message_id: GetMessageId | None = None,
        clean_interval: timedelta | None = timedelta(minutes=10),
    ) -> None:
        _check_time("retention", retention)
        if message_id is not None and not callable(message_id):
            raise TypeError(f"message_id must be a function of the message, not {type(message_id).__name__}.")
        if clean_interval is not None:
            _check_time("clean_interval", clean_interval)
        self._records = InboxRecords(
            InboxStore(engine, table), retention, get_message_id=message_id, clean_interval=clean_interval
        )
        self._set_consumer(consumer)

    def _set_consumer(self, consumer: str | None) -> None:
        self.consumer = consumer
        self._named = None if consumer is None else Consumer(consumer)
        self._served: dict[str, Consumer] = {} if self._named is None else {self._named.name: self._named}

    def named(self, consumer: str) -> Self:
        """Return an inbox for another consumer, with the same options.

        Args:
            consumer: The name of the handler in the table; never change it.

        Example:
            audit = inbox.named("audit")

        """
        sibling = object.__new__(type(self))
        sibling.__dict__.update(self.__dict__)
        sibling._set_consumer(consumer)
        return sibling

    def __call__(self, msg: Any, /, *, context: ContextRepo) -> InboxMiddleware:
        """Return the middleware of one delivery; FastStream calls this."""
        return InboxMiddleware(self._records, self.consumer_of, msg, context=context)

    async def clean(self) -> int:
        """Delete all records of the consumer that are older than the retention, in small batches; return how many.

        An inbox without a name does this for the handlers that it has served in this process.

        Example:
            await inbox.clean()  # from a scheduler, where no messages come for long

        """
        total = 0
        for consumer in list(self._served.values()):
            while count := await self._records.clean_batch(consumer):
                total += count
        return total

    async def validate_schema(self) -> None:
        """Raise one `RuntimeError` that lists all that the live table lacks, with the DDL that adds it."""
        await self._records.store.validate_schema()

    def consumer_of(self, subscriber: Any) -> Consumer:
        """Return the consumer for a subscriber's messages; raise for a subscriber that would lose some."""
        if subscriber.ack_policy is AckPolicy.ACK_FIRST:
            raise RuntimeError(
                "This subscriber acks a message before it is handled, so a message that fails is lost and the inbox is "
                "useless: declare it with ack_policy=AckPolicy.NACK_ON_ERROR."
            )
        consumer = self._named or derived_consumer(self._records.store.table, subscriber)
        consumer.bind(subscriber)
        self._served[consumer.name] = consumer
        return consumer


def _check_time(what: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise TypeError(f"{what} must be a timedelta, such as timedelta(days=7), not {type(value).__name__}.")
    if not timedelta(0) < value <= MAX_DELAY:
        raise ValueError(f"{what} is {value!r}: give more than 0 and at most {MAX_DELAY.days} days.")
