"""The middleware of one delivery: opens the transaction before the handler, commits it after, and only then acks."""

from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Final, NoReturn

from faststream import BaseMiddleware, ContextRepo
from faststream.exceptions import AckMessage
from faststream.message import AckStatus, SourceType, StreamMessage
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox._faststream import LoopContext
from faststream_outbox.inbox.consumer import Consumer
from faststream_outbox.inbox.records import InboxRecords
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.storage.postgres.inbox import InboxTransaction

# The names in FastStream's context.
_SESSION: Final = "inbox_session"
_MESSAGE: Final = "inbox_message"
# NATS has two ways to ack.
_ACKS: Final[tuple[str, ...]] = ("ack", "ack_sync")


def _no_session() -> NoReturn:
    raise RuntimeError(
        "This handler has a parameter InboxSession, and its broker has no inbox: give one to the broker or router, "
        "as middlewares=[inbox]."
    )


def _refuse_outbox_session() -> NoReturn:
    raise RuntimeError(
        "The session of the message (OutboxSession) is committed after the inbox's, and a crash between the two would "
        "lose its writes: use an InboxSession, or remove the inbox, which an OutboxSession does not need."
    )


InboxSession = Annotated[AsyncSession, LoopContext(_SESSION, initial=_no_session)]
"""The session whose transaction records the message. Handlers write with it; the inbox commits it."""


class InboxMiddleware(BaseMiddleware):
    """Handles one delivery of a message."""

    def __init__(
        self,
        records: InboxRecords,
        consumer_of: Callable[[Any], Consumer],
        msg: Any,
        /,
        *,
        context: ContextRepo,
    ) -> None:
        super().__init__(msg, context=context)
        self._records = records
        self._consumer_of = consumer_of
        self._delivery: _Delivery | None = None
        self._skipped = False

    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        """Call the handler in a transaction that records the message, unless it was handled before."""
        if msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)  # the response to a request of this application
        consumer = self._find_consumer(msg)
        transaction = await self._records.begin(consumer, msg, self.context.get_local("logger"))
        if transaction is None:
            self._skipped = True
            await msg.ack()  # under AckPolicy.MANUAL FastStream does not
            raise AckMessage  # a returned value would be published as an answer
        # The message that the handler gets: a middleware may have replaced `msg` by a copy.
        message: StreamMessage[Any] = self.context.get_local("message")
        delivery = _Delivery(consumer, transaction, message)
        if isinstance(message.raw_message, OutboxDelivery):
            message.raw_message.open_session = _refuse_outbox_session
        with self.context.scopes(((_SESSION, transaction.session), (_MESSAGE, msg))):
            try:
                result = await call_next(msg)
            except AckMessage:
                await delivery.commit()
                raise
            except BaseException:
                await delivery.rollback()
                raise
        # FastStream publishes the handler's answer next; `__aexit__` commits after that, so that no answer is lost.
        self._delivery = delivery
        return result

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Commit or roll back, before FastStream acks or nacks the message."""
        if self._skipped:
            return isinstance(exc_val, AckMessage)
        if self._delivery is None:
            return False
        if exc_type is not None or self._delivery.refused:
            await self._delivery.rollback()
            return False
        await self._delivery.commit()
        await self._records.clean_when_due(self._delivery.consumer, self.context.get_local("logger"))
        return False

    def _find_consumer(self, msg: StreamMessage[Any]) -> Consumer:
        handled: Any = self.context.get_local("message")
        subscriber: Any = self.context.get_local("handler_")
        if subscriber is None or handled is None or handled.raw_message is not msg.raw_message:
            raise RuntimeError(
                "An inbox needs a handler, whose transaction it shares: get_one() and `async for` have none. "
                "Give the subscriber a handler, or remove the inbox from it."
            )
        outer: Any = self.context.get_local(_MESSAGE)
        if outer is not None and outer.raw_message is msg.raw_message:
            raise RuntimeError(
                "Two inboxes would record one message in two transactions: remove all but one of the inboxes of the "
                "broker, its routers and its subscriber."
            )
        return self._consumer_of(subscriber)


class _Delivery:
    """A message that is being handled, with its transaction.

    Holds back the handler's ack until the commit: after an ack the broker would not deliver a rolled back message.
    A nack or a reject is sent at once, because the transaction is rolled back then.
    """

    def __init__(self, consumer: Consumer, transaction: InboxTransaction, message: StreamMessage[Any]) -> None:
        self.consumer = consumer
        self._transaction = transaction
        self._message = message
        self._held_ack: Callable[[], Awaitable[Any]] | None = None
        # Methods that a middleware has set on this message.
        self._overrides = {name: vars(message)[name] for name in _ACKS if name in vars(message)}
        for name in _ACKS:
            if hasattr(message, name):
                vars(message)[name] = partial(self._hold, getattr(message, name))

    async def _hold(self, ack: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> None:
        self._held_ack = self._held_ack or partial(ack, *args, **options)

    def _restore_acks(self) -> None:
        for name in _ACKS:
            vars(self._message).pop(name, None)
        vars(self._message).update(self._overrides)

    @property
    def refused(self) -> bool:
        """Whether the handler has nacked or rejected the message."""
        return self._message.committed in (AckStatus.NACKED, AckStatus.REJECTED)

    async def commit(self) -> None:
        """Commit the transaction, then ack the message if the handler did."""
        raw = self._message.raw_message
        if isinstance(raw, OutboxDelivery) and raw.outputs:
            await self.rollback()
            raise RuntimeError(
                "This handler's answer would be inserted after the inbox's commit, and a crash between the two would "
                "lose it: publish it with `await broker.publish(…, session=session)`, through the handler's "
                "InboxSession."
            )
        try:
            await self._transaction.end()
        finally:
            self._restore_acks()
        if self._held_ack is not None:
            await self._held_ack()

    async def rollback(self) -> None:
        """Roll back the transaction; an ack of the handler is forgotten."""
        self._restore_acks()
        await self._transaction.rollback()
