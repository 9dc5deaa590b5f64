"""What stands between a broker and a handler: the transaction they share, opened before the one and ended after."""

from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final

from faststream import BaseMiddleware, Context, ContextRepo
from faststream.exceptions import AckMessage
from faststream.message import AckStatus, SourceType, StreamMessage
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.message import OutboxDelivery

if TYPE_CHECKING:
    from faststream_outbox.inbox.inbox import Inbox
    from faststream_outbox.storage.inbox import InboxTransaction

_SESSION: Final = "inbox_session"
_MESSAGE: Final = "inbox_message"

# The session in which the message is recorded. The inbox commits it: a handler writes with it, and no more.
InboxSession = Annotated[AsyncSession, Context(_SESSION)]


class InboxMiddleware(BaseMiddleware):
    """One delivery of a message."""

    def __init__(self, inbox: "Inbox", msg: Any, /, *, context: ContextRepo) -> None:
        super().__init__(msg, context=context)
        self._inbox = inbox
        self._message: StreamMessage[Any] | None = None
        self._transaction: InboxTransaction | None = None
        self._skipped = False

    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        """Call the handler in a transaction that records the message; not at all if it was seen."""
        if msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)  # the answer to a request of ours
        self._check(msg)
        transaction = await self._inbox.begin(msg, self.context.get_local("logger"))
        if transaction is None:
            self._skipped = True
            await msg.ack()  # under AckPolicy.MANUAL nobody else would
            raise AckMessage  # a return would publish it as an answer
        with self.context.scopes(((_SESSION, transaction.session), (_MESSAGE, msg))):
            try:
                result = await call_next(msg)
            except AckMessage:
                await transaction.end()
                raise
            except BaseException:
                await transaction.rollback()
                raise
        # What the handler answers is published next. Only then comes the commit, so that no answer is lost.
        self._message, self._transaction = msg, transaction
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
        if self._transaction is None or self._message is None:
            return False
        if exc_type is not None or self._message.committed in _NOT_HANDLED:
            await self._transaction.rollback()
            return False
        try:
            _check_answers(self._message)
        except BaseException:
            await self._transaction.rollback()
            raise
        await self._transaction.end()
        await self._inbox.clean_when_due(self.context.get_local("logger"))
        return False

    def _check(self, msg: StreamMessage[Any]) -> None:
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
        self._inbox.check_subscriber(subscriber)


_NOT_HANDLED: Final = (AckStatus.NACKED, AckStatus.REJECTED)


def _check_answers(message: StreamMessage[Any]) -> None:
    delivery = message.raw_message
    if isinstance(delivery, OutboxDelivery) and delivery.outputs:
        raise RuntimeError(
            "What this handler answers would be written after the inbox's commit, and lost by a crash between the two: "
            "publish it with `await broker.publish(…, session=session)`, through the handler's InboxSession."
        )
