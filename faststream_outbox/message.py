"""A message as a handler sees it, and the verdict that is given on it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, Self, cast

from faststream.message import StreamMessage
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.storage import HANDLED, Ack, NewRow, OutboxRow
from faststream_outbox.storage.checks import check_number


@dataclass(frozen=True, slots=True)
class Nack:
    """The verdict that a message failed: it is retried after `delay` seconds, or when the retry strategy says.

    `alone` is False where the verdict was given on a whole batch, of which one message may be the cause.
    """

    delay: float | None = None
    alone: bool = True


@dataclass(frozen=True, slots=True)
class Reject:
    """The verdict that a message failed for good."""


Verdict = Ack | Nack | Reject


@dataclass(slots=True)
class OutboxDelivery(OutboxRow):
    """A row on its way through a handler: what was stored, the verdict on it, and what is published in answer.

    This is the `raw_message` of an `OutboxMessage`, and what a custom parser is given.
    """

    verdict: Verdict | None = None
    # Called with the delivery when a verdict is given, where nobody waits for a handler to end.
    settle: Callable[["OutboxDelivery"], Awaitable[None]] | None = None
    # Rows that are inserted by the statement that deletes this one: all of it happens, or nothing.
    outputs: tuple[NewRow, ...] = ()
    # How many rows are handled by the same call.
    batch_size: int = 1
    # Whether the handler of a shared transaction raised, whatever was made of that.
    raised: bool = False
    # Begins the transaction in which this row will be deleted, or returns the session of the one that was begun.
    open_session: Callable[[], AsyncSession] | None = None

    @classmethod
    def of(cls, row: OutboxRow) -> Self:
        """Begin the delivery of a row; one that was claimed for it is one already."""
        return row if isinstance(row, cls) else cls(*_ROW_VALUES(row))


_ROW_VALUES = attrgetter(*(each.name for each in fields(OutboxRow)))


class OutboxMessage(StreamMessage[OutboxDelivery]):
    """One message of a queue.

    `message_id` is the row's id, `correlation_id` the header of that name or else the row's id. The lease on the row is
    renewed for as long as the handler runs.

    Example:
        from faststream_outbox.annotations import OutboxMessage

        @broker.subscriber("orders", ack_policy=AckPolicy.MANUAL)
        async def handle(order_id: int, message: OutboxMessage) -> None:
            if busy():
                await message.nack(delay=30)
            else:
                await message.ack()

    """

    @property
    def deliveries(self) -> tuple[OutboxDelivery, ...]:
        """The rows that the message is made of: one, unless it is a batch."""
        return (self.raw_message,)

    @property
    def session(self) -> AsyncSession:
        """The session whose transaction deletes the message, when the handler has returned.

        Whoever asks for it, as a handler does by a parameter `session: OutboxSession`, has its writes and that deletion
        committed together.
        """
        open_session = self.deliveries[0].open_session
        if open_session is None:
            raise RuntimeError(
                "There is a session for a message while its handler runs, and not for one that was taken by get_one() "
                "or `async for`: open a session of your own."
            )
        return open_session()

    async def ack(self) -> None:
        """Say that the message was handled: its row will be deleted."""
        await self._decide(HANDLED)
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Say that the message failed and is to be tried again.

        Without a delay the subscriber's retry strategy says when, or that it was the last time. With a delay it is
        tried again after that many seconds, whatever the strategy says.
        """
        if delay is not None:
            check_number("delay", delay)
        await self._decide(Nack(delay, alone=len(self.deliveries) == 1))
        await super().nack()

    async def reject(self) -> None:
        """Say that the message failed for good: it goes to the dead-letter table, where there is one."""
        await self._decide(Reject())
        await super().reject()

    async def _decide(self, verdict: Verdict) -> None:
        for delivery in self.deliveries:
            if delivery.verdict is None:  # the first one stands
                delivery.verdict = verdict
                if delivery.settle is not None:
                    await delivery.settle(delivery)

    def __repr__(self) -> str:
        row: Any = self.raw_message
        return f"{type(self).__name__}(id={row.id}, queue={row.queue!r}, body={self.body!r}, headers={self.headers!r})"


class OutboxBatchMessage(OutboxMessage):
    """Messages that one call handles; a verdict on it is one on all those that have none of their own.

    `raw_message` is a tuple of rows, `body` a list of payloads, `batch_headers` a list of headers. `messages` are the
    single messages, in the order of the handler's list, each to be settled by itself.

    Example:
        from faststream_outbox.annotations import OutboxBatchMessage

        @broker.subscriber("orders", batch=True)
        async def handle(orders: list[Order], batch: OutboxBatchMessage) -> None:
            for order, message in zip(orders, batch.messages, strict=True):
                if order.is_nonsense:
                    await message.reject()

    """

    def __init__(self, *args: Any, open_messages: Callable[[], Sequence[OutboxMessage]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open_messages = open_messages

    @property
    def deliveries(self) -> tuple[OutboxDelivery, ...]:
        """The rows."""
        return cast("tuple[OutboxDelivery, ...]", self.raw_message)

    @cached_property
    def messages(self) -> Sequence[OutboxMessage]:
        """The single messages, each of which has its own `ack()`, `nack()` and `reject()`."""
        return self._open_messages()

    def __repr__(self) -> str:
        rows = self.deliveries
        return f"{type(self).__name__}(ids={rows[0].id}…{rows[-1].id}, queue={rows[0].queue!r}, count={len(rows)})"
