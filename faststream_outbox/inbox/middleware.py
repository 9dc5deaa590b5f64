"""What stands between a broker and a handler: the transaction they share, opened before the one and ended after."""

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from faststream import BaseMiddleware, ContextRepo
from faststream.exceptions import AckMessage
from faststream.message import SourceType, StreamMessage
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox._faststream import LoopContext
from faststream_outbox.inbox.verdicts import HeldAck
from faststream_outbox.message import OutboxDelivery

if TYPE_CHECKING:
    from faststream_outbox.inbox.consumer import Consumer
    from faststream_outbox.inbox.inbox import Inbox
    from faststream_outbox.storage.postgres.inbox import InboxTransaction

_SESSION: Final = "inbox_session"
_MESSAGE: Final = "inbox_message"


def _no_session() -> NoReturn:
    raise RuntimeError(
        "This handler asks for an InboxSession, and no inbox stands before it: give one to its broker or router, "
        "as middlewares=[inbox]."
    )


def _second_session() -> NoReturn:
    raise RuntimeError(
        "The message's own session (OutboxSession) is committed after the inbox's, and what it wrote would be lost by "
        "a crash between the two: write through an InboxSession, or take the inbox off, which is not needed then."
    )


# The session in which the message is recorded. The inbox commits it: a handler writes with it, and no more.
InboxSession = Annotated[AsyncSession, LoopContext(_SESSION, initial=_no_session)]


class InboxMiddleware(BaseMiddleware):
    """One delivery of a message."""

    def __init__(self, inbox: "Inbox", msg: Any, /, *, context: ContextRepo) -> None:
        super().__init__(msg, context=context)
        self._inbox = inbox
        self._open: _Open | None = None
        self._skipped = False

    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        """Call the handler in a transaction that records the message; not at all if it was seen."""
        if msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)  # the answer to a request of ours
        consumer = self._check(msg)
        transaction = await self._inbox.begin(consumer, msg, self.context.get_local("logger"))
        if transaction is None:
            self._skipped = True
            await msg.ack()  # under AckPolicy.MANUAL nobody else would
            raise AckMessage  # a return would publish it as an answer
        # What the handler is given; a middleware may have passed on a copy.
        message: StreamMessage[Any] = self.context.get_local("message")
        opened = _Open(consumer, transaction, HeldAck(message), message.raw_message)
        if isinstance(message.raw_message, OutboxDelivery):
            message.raw_message.open_session = _second_session
        with self.context.scopes(((_SESSION, transaction.session), (_MESSAGE, msg))):
            try:
                result = await call_next(msg)
            except AckMessage:
                await opened.commit()
                raise
            except BaseException:
                await opened.rollback()
                raise
        # What the handler answers is published next. Only then comes the commit, so that no answer is lost.
        self._open = opened
        return result

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """End the transaction, before the broker hears what became of the message."""
        if self._skipped:
            return isinstance(exc_val, AckMessage)
        if self._open is None:
            return False
        if exc_type is not None or self._open.ack.refused:
            await self._open.rollback()
            return False
        await self._open.commit()
        await self._inbox.clean_when_due(self._open.consumer, self.context.get_local("logger"))
        return False

    def _check(self, msg: StreamMessage[Any]) -> "Consumer":
        handled: Any = self.context.get_local("message")
        subscriber: Any = self.context.get_local("handler_")
        if subscriber is None or handled is None or handled.raw_message is not msg.raw_message:
            raise RuntimeError(
                "An inbox needs a handler, whose transaction it shares: get_one() and `async for` have none. "
                "Give the subscriber a handler, or take the inbox off it."
            )
        outer: Any = self.context.get_local(_MESSAGE)
        if outer is not None and outer.raw_message is msg.raw_message:
            raise RuntimeError(
                "Two inboxes for one message would record it in two transactions: keep one of those that the broker, "
                "its routers and its subscriber were given."
            )
        return self._inbox.consumer_of(subscriber)


@dataclass(frozen=True, slots=True)
class _Open:
    """A message that is being handled."""

    consumer: "Consumer"
    transaction: "InboxTransaction"
    ack: HeldAck
    raw_message: Any

    async def commit(self) -> None:
        try:
            _check_answers(self.raw_message)
        except BaseException:
            await self.rollback()
            raise
        try:
            await self.transaction.end()
        except BaseException:
            self.ack.drop()
            raise
        await self.ack.pass_on()

    async def rollback(self) -> None:
        self.ack.drop()
        await self.transaction.rollback()


def _check_answers(delivery: object) -> None:
    if isinstance(delivery, OutboxDelivery) and delivery.outputs:
        raise RuntimeError(
            "What this handler answers would be written after the inbox's commit, and lost by a crash between the two: "
            "publish it with `await broker.publish(…, session=session)`, through the handler's InboxSession."
        )
