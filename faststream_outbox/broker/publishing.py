"""Publishing, as a user of the broker does it: in the user's own transaction."""

from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from faststream_outbox._faststream import BrokerUsecase
from faststream_outbox.client import AbstractOutboxClient
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.publisher.producer import NO_REQUESTS
from faststream_outbox.response import OutboxPublishCommand, check_asynchronous, check_synchronous
from faststream_outbox.storage import OutboxRow, SessionOrConnection, TimerConflict


class OutboxPublishing(BrokerUsecase[OutboxDelivery, AbstractOutboxClient, OutboxBrokerConfig]):
    """The half of a broker that writes into the table, and reads what waits there."""

    @property
    def client(self) -> AbstractOutboxClient:
        """The outbox at its lowest, for what the broker has no method for."""
        client: AbstractOutboxClient = self.config.client
        return client

    async def publish(  # type: ignore[override] # the queue and the session are named
        self,
        body: Any = None,
        *,
        queue: str,
        session: SessionOrConnection | None = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """Write one message through your transaction: it is sent if, and when, that commits.

        Nothing is committed here. A session that has no transaction yet begins one, which is yours to commit.

        Args:
            body: Whatever FastStream can encode; bytes are stored as they are.
            queue: The queue's name.
            session: The `AsyncSession` or `AsyncConnection` of your transaction.
            headers: Anything that JSON knows, by name.
            correlation_id: Told to the handler and passed on by what it publishes; the row's id where there is none.
            reply_to: The queue where an answer is expected.
            key: Those of one key are delivered in the order of their commits, one at a time.
            activate_in: How long to wait before it is delivered.
            activate_at: When to deliver it; with a time zone.
            timer_id: A name under which the queue holds one waiting message at most.
            timer_conflict: What to do when it does: "ignore" the new one, or "extend" the waiting one's delay.

        Returns:
            The row's id; None when a message with this `timer_id` is waiting already.

        """
        check_asynchronous(session)
        cmd = OutboxPublishCommand(
            body,
            queue=queue,
            session=session,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            key=key,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
        )
        row_id: int | None = await self._basic_publish(cmd, producer=self.config.producer)
        return row_id

    async def publish_batch(
        self,
        *bodies: Any,
        queue: str,
        session: SessionOrConnection | None = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        keys: Sequence[str | None] | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
    ) -> list[int]:
        """Write messages through your transaction, in one round trip; returns the rows' ids, in their order."""
        check_asynchronous(session)
        if not bodies:
            return []
        cmd = OutboxPublishCommand(
            *bodies,
            queue=queue,
            session=session,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            keys=keys,
            activate_in=activate_in,
            activate_at=activate_at,
        )
        ids: list[int] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return ids

    def publish_sync(
        self,
        body: Any = None,
        *,
        queue: str,
        session: Session | Connection | scoped_session[Session],
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """Write one message through a synchronous session or connection, as `publish` does through others.

        Middlewares run too, but cannot wait for anything here.
        """
        check_synchronous(session)
        cmd = OutboxPublishCommand(
            body,
            queue=queue,
            session=session() if isinstance(session, scoped_session) else session,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            key=key,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
        )
        cmd.synchronous = True
        row_id: int | None = _run_now(self._basic_publish(cmd, producer=self.config.producer))
        return row_id

    async def cancel_timer(self, *, queue: str, timer_id: str, session: SessionOrConnection | None = None) -> bool:
        """Take back a timer through your transaction; False when there is none, or it is being delivered."""
        return await self.client.cancel_timer(queue=queue, timer_id=timer_id, session=session)

    async def fetch_unprocessed(
        self, *, session: SessionOrConnection | None = None, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows without leasing them, oldest first."""
        return await self.client.fetch_unprocessed(session=session, queue=queue, limit=limit)

    async def request(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: an outbox has no answer to wait for."""
        raise NotImplementedError(NO_REQUESTS)


def _run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing, without an event loop, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError(
        "publish_sync runs middlewares and the codec without an event loop, and one of them waits for something. "
        "Make it publish without waiting, or publish from async code."
    )
