"""The publishing methods of the broker: each writes through the user's own transaction."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, NoReturn, cast

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from faststream_outbox._faststream import BrokerUsecase, ProducerProto
from faststream_outbox.client import AbstractOutboxClient
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.publisher.collector import AnyOrmSession, CollectingProducer, OutboxCollector
from faststream_outbox.publisher.producer import NO_REQUESTS, OutboxProducer, run_now
from faststream_outbox.response import OutboxPublishCommand, check_asynchronous, check_synchronous
from faststream_outbox.storage import OutboxRow, SessionOrConnection, TimerConflict
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.sessions.raw import DriverConnection

# The module of FastStream that publishes for the page of the AsyncAPI document, which has no session to give.
_PAGE: Final = "faststream.asgi.factories.asyncapi.try_it_out"
_NO_TRYING_OUT: Final = (
    "This page cannot send to an outbox: a message is published inside a transaction of the application, and the page "
    "has none. Publish from the application, a script or a test. To serve the page without trying out: "
    "AsyncAPIRoute(path, try_it_out_path=None); a FastAPI OutboxRouter serves no page with schema_url=None."
)


class OutboxPublishing(BrokerUsecase[OutboxDelivery, AbstractOutboxClient, OutboxBrokerConfig]):
    """The part of the broker that inserts messages, cancels timers, and reads rows that wait."""

    @property
    def client(self) -> AbstractOutboxClient:
        """Return the client: single operations on rows, for what the broker has no method for."""
        client: AbstractOutboxClient = self.config.client
        return client

    async def publish(
        self,
        body: Any = None,
        queue: str = "",
        *,
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
        """Insert one message through your transaction; it is delivered after the commit.

        This never commits. A session without a transaction begins one, which you commit.

        Args:
            body: Anything FastStream can encode; bytes are stored unchanged.
            queue: The name of the queue.
            session: The `AsyncSession` or `AsyncConnection` of your transaction, or a connection of asyncpg or psycopg.
            headers: Names with values that JSON can hold.
            correlation_id: Given to the handler, and to the messages that it publishes; by default what the broker's
                `id_generator` makes, or the id of the row.
            reply_to: The queue for the answer.
            key: Messages with the same key are delivered in the order of their commits, one at a time.
            activate_in: The delay before the message is delivered.
            activate_at: The time at which the message is delivered; with a time zone.
            timer_id: A name that at most one waiting message of the queue has.
            timer_conflict: If such a message waits: "ignore" the new one, or "extend" the delay of the waiting one.

        Returns:
            The id of the row; None if a message with this `timer_id` waits already.

        """
        check_asynchronous(session)
        producer = cast("OutboxProducer", self.config.producer)
        if producer.is_direct and session is not None:
            row = producer.make_row(
                body,
                queue,
                headers=headers,
                correlation_id=correlation_id,
                reply_to=reply_to,
                key=key,
                activate_in=activate_in,
                activate_at=activate_at,
                timer_id=timer_id,
                timer_conflict=timer_conflict,
            )
            return await producer.insert_row(session, row, timer_conflict)
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
        self.config.give_correlation_id(cmd)
        row_id: int | None
        try:
            row_id = await self._basic_publish(cmd, producer=self.config.producer)
        except TypeError:
            if session is None and sys._getframe(1).f_globals.get("__name__") == _PAGE:  # noqa: SLF001 - see `_PAGE`
                raise NotImplementedError(_NO_TRYING_OUT) from None
            raise
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
        """Insert messages through your transaction in one round trip; without bodies nothing is inserted.

        Args:
            bodies: The messages; each is anything FastStream can encode, and bytes are stored unchanged.
            queue: The name of the queue.
            session: The `AsyncSession` or `AsyncConnection` of your transaction, or a connection of asyncpg or psycopg.
            headers: Headers of every message: names with values that JSON can hold.
            correlation_id: Of every message; by default what the broker's `id_generator` makes, or the id of each row.
            reply_to: The queue for the answers.
            keys: A key, or None, for each body. Messages with the same key are delivered in order, one at a time.
            activate_in: The delay before the messages are delivered.
            activate_at: The time at which the messages are delivered; with a time zone.

        Returns:
            The ids of the rows, in the order of the bodies.

        Example:
            keys = [each.customer for each in orders]
            await broker.publish_batch(*orders, queue="orders", keys=keys, session=session)

        """
        check_asynchronous(session)
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
        ids: list[int]
        if bodies:
            self.config.give_correlation_id(cmd)
            ids = await self._basic_publish_batch(cmd, producer=self.config.producer)
        else:  # there is nothing for middlewares, but wrong arguments are refused
            check_name("queue", queue)
            ids = await self.config.producer.publish_batch(cmd)
        return ids

    def publish_sync(
        self,
        body: Any = None,
        queue: str = "",
        *,
        session: Session | Connection | scoped_session[Session] | DriverConnection,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """Insert one message through a synchronous session or connection; it is delivered after the commit.

        Middlewares run too, but cannot await anything: there is no event loop.

        Args:
            body: Anything FastStream can encode; bytes are stored unchanged.
            queue: The name of the queue.
            session: The `Session`, `scoped_session` or `Connection` of your transaction, or a connection of psycopg.
            headers: Names with values that JSON can hold.
            correlation_id: Given to the handler, and to the messages that it publishes; by default what the broker's
                `id_generator` makes, or the id of the row.
            reply_to: The queue for the answer.
            key: Messages with the same key are delivered in the order of their commits, one at a time.
            activate_in: The delay before the message is delivered.
            activate_at: The time at which the message is delivered; with a time zone.
            timer_id: A name that at most one waiting message of the queue has.
            timer_conflict: If such a message waits: "ignore" the new one, or "extend" the delay of the waiting one.

        Returns:
            The id of the row; None if a message with this `timer_id` waits already.

        Example:
            with Session(sync_engine) as session, session.begin():
                broker.publish_sync(1, queue="orders", session=session)

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
        self.config.give_correlation_id(cmd)
        row_id: int | None = run_now(self._basic_publish(cmd, producer=self.config.producer), "publish_sync")
        return row_id

    def collect(self, session: AnyOrmSession | None = None, *, events: bool = False) -> OutboxCollector:
        """Return a collector: it takes messages without `await`, and the session inserts them when it commits.

        One statement inserts all messages of a transaction, after the session's own changes. A rollback drops them.

        Args:
            session: The `AsyncSession` or `Session` that is going to commit, or a scoped session: then each message
                goes to the session that is current at its `publish`.
            events: Whether to take what objects of the session record as well; see `RecordsEvents`.

        Example:
            async with session_factory() as session, session.begin():
                outbox = broker.collect(session)
                outbox.publish({"order_id": 1}, queue="orders")

        """
        return OutboxCollector(self._collecting_producer, self._submit, session, events=events)

    @cached_property
    def _collecting_producer(self) -> CollectingProducer:
        return CollectingProducer(self.config.broker_config)

    async def _submit(self, cmd: OutboxPublishCommand, producer: ProducerProto[Any]) -> Any:
        return await self._basic_publish(cmd, producer=producer)

    async def cancel_timer(self, *, queue: str, timer_id: str, session: SessionOrConnection | None = None) -> bool:
        """Delete a timer through your transaction; return False if there is none, or it is being delivered.

        Args:
            queue: The name of its queue.
            timer_id: The name that it was published with.
            session: The `AsyncSession` or `AsyncConnection` of your transaction, or a connection of asyncpg or psycopg.

        """
        return await self.client.cancel_timer(queue=queue, timer_id=timer_id, session=session)

    async def fetch_unprocessed(
        self, *, session: SessionOrConnection | None = None, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows without leasing them, oldest first.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through.
            queue: Rows of this queue only; by default of all queues.
            limit: The largest number of rows to return.

        """
        return await self.client.fetch_unprocessed(session=session, queue=queue, limit=limit)

    async def request(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise `NotImplementedError`: an outbox gives no answer to wait for."""
        raise NotImplementedError(NO_REQUESTS)
