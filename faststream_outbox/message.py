"""A message as a handler sees it, and the verdict that is given on it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import Any, Self

from faststream.message import StreamMessage

from faststream_outbox.storage import NewRow, OutboxRow
from faststream_outbox.storage.checks import check_number


@dataclass(frozen=True, slots=True)
class Acked:
    """Handled."""


@dataclass(frozen=True, slots=True)
class Nacked:
    """Failed, to be tried again: when the retry strategy says, or after `delay` seconds."""

    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Failed for good."""


Verdict = Acked | Nacked | Rejected


@dataclass(slots=True)
class OutboxDelivery(OutboxRow):
    """A row on its way through a handler: what was stored, the verdict on it, and what is published in answer.

    This is the `raw_message` of an `OutboxMessage`, and what a custom parser is given.
    """

    verdict: Verdict | None = None
    # Called with the delivery when a verdict is given, where nobody waits for a handler to end.
    settle: Callable[["OutboxDelivery"], Awaitable[None]] | None = None
    # Rows that are inserted by the statement that deletes this one: all of it happens, or nothing.
    outputs: list[NewRow] = field(default_factory=list)

    @classmethod
    def of(cls, row: OutboxRow) -> Self:
        """Begin the delivery of a row."""
        return cls(*(getattr(row, name) for name in _ROW_FIELDS))

    async def decide(self, verdict: Verdict) -> None:
        """Give a verdict; the first one stands."""
        if self.verdict is None:
            self.verdict = verdict
            if self.settle is not None:
                await self.settle(self)


_ROW_FIELDS = tuple(each.name for each in fields(OutboxRow))


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

    async def ack(self) -> None:
        """Say that the message was handled: its row will be deleted."""
        await self.raw_message.decide(Acked())
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Say that the message failed and is to be tried again.

        Without a delay the subscriber's retry strategy says when, or that it was the last time. With a delay it is
        tried again after that many seconds, whatever the strategy says.
        """
        if delay is not None:
            check_number("delay", delay)
        await self.raw_message.decide(Nacked(delay))
        await super().nack()

    async def reject(self) -> None:
        """Say that the message failed for good: it goes to the dead-letter table, where there is one."""
        await self.raw_message.decide(Rejected())
        await super().reject()

    def __repr__(self) -> str:
        row: Any = self.raw_message
        return f"{type(self).__name__}(id={row.id}, queue={row.queue!r}, body={self.body!r}, headers={self.headers!r})"
