"""A message as a handler gets it, and the verdict that the handler gives."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, cast

from faststream.message import StreamMessage
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.storage import HANDLED, Ack, NewRow, OutboxRow
from faststream_outbox.storage.checks import MAX_DELAY, check_number


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
    """A row in a handler: its stored fields, the verdict, and the messages published in answer.

    This is the `raw_message` of an `OutboxMessage`, and what a custom parser is given.
    """

    verdict: Verdict | None = None
    # Called when a verdict is given on a message that was taken by get_one() or `async for`.
    settle: Callable[["OutboxDelivery"], Awaitable[None]] | None = None
    # Rows that the statement which deletes this one inserts: both happen, or neither.
    outputs: tuple[NewRow, ...] = ()
    # How many rows the same call handles.
    batch_size: int = 1
    # Whether the handler of a shared transaction raised, even if a middleware handled the exception.
    raised: bool = False
    # Returns the session of the transaction that will delete this row; begins it first where it has not begun.
    open_session: Callable[[], AsyncSession] | None = None

    @classmethod
    def of(cls, row: OutboxRow) -> Self:
        """Return the delivery of a row; a subscriber claims its rows as deliveries."""
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
        """Return the rows of the message: one, unless it is a batch."""
        return (self.raw_message,)

    @property
    def session(self) -> AsyncSession:
        """Return the session whose transaction deletes the message when the handler has returned.

        The handler's writes through it and that deletion are committed together. A handler asks for it by a parameter
        `session: OutboxSession`.
        """
        open_session = self.deliveries[0].open_session
        if open_session is None:
            raise RuntimeError(
                "A message that was taken by get_one() or `async for` has no session: only a handler shares its "
                "transaction. Open a session of your own."
            )
        return open_session()

    async def ack(self) -> None:
        """Give the verdict that the message was handled: its row will be deleted."""
        await self._decide(HANDLED)
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Give the verdict that the message failed and is to be retried.

        Without a delay the subscriber's retry strategy decides when, or that this attempt was the last. With a delay
        the message is retried after that many seconds, a century at most, whatever the strategy says.

        Args:
            delay: After how many seconds to retry; by default the retry strategy decides.

        """
        if delay is not None:
            check_number("delay", delay, most=MAX_DELAY.total_seconds())
        await self._decide(Nack(delay, alone=len(self.deliveries) == 1))
        await super().nack()

    async def reject(self) -> None:
        """Give the verdict that the message failed for good: it is dead-lettered, where there is a table for that."""
        await self._decide(Reject())
        await super().reject()

    async def _decide(self, verdict: Verdict) -> None:
        for delivery in self.deliveries:
            if delivery.verdict is None:  # the first verdict stands
                delivery.verdict = verdict
                if delivery.settle is not None:
                    await delivery.settle(delivery)

    def __repr__(self) -> str:
        row: Any = self.raw_message
        return f"{type(self).__name__}(id={row.id}, queue={row.queue!r}, body={self.body!r}, headers={self.headers!r})"


class OutboxBatchMessage(OutboxMessage):
    """The messages of one call; a verdict on the batch holds for every message without its own verdict.

    `raw_message` is a tuple of rows, `body` a list of payloads, `batch_headers` a list of headers. `messages` are the
    single messages, in the order of the handler's list; each takes a verdict of its own.

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
        """Return the rows."""
        return cast("tuple[OutboxDelivery, ...]", self.raw_message)

    @cached_property
    def messages(self) -> Sequence[OutboxMessage]:
        """Return the single messages, each with its own `ack()`, `nack()` and `reject()`."""
        return self._open_messages()

    def __repr__(self) -> str:
        rows = self.deliveries
        return f"{type(self).__name__}(ids={rows[0].id}…{rows[-1].id}, queue={rows[0].queue!r}, count={len(rows)})"


if not TYPE_CHECKING:  # type checkers would take every name for one of this module

    def __getattr__(name: str) -> Any:
        """Raise `ImportError` for the original package's name of `OutboxRow`."""
        if name == "OutboxInnerMessage":
            raise ImportError("OutboxInnerMessage is named OutboxRow: from faststream_outbox.storage import OutboxRow.")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
