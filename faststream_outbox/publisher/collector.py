"""Collects messages for the commit of a session, without `await`; one statement inserts all of them."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from unittest.mock import NonCallableMock

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from faststream_outbox._faststream import ProducerProto
from faststream_outbox.publisher.events import event_of, return_events, take_events
from faststream_outbox.publisher.producer import OutboxProducer, PendingRows, run_now
from faststream_outbox.response import CollectedMessage, OutboxPublishCommand
from faststream_outbox.storage import NewRow, TimerConflict
from faststream_outbox.storage.checks import check_collected
from faststream_outbox.storage.commits import sync_session_of
from faststream_outbox.storage.publishing import check_batch
from faststream_outbox.storage.rows import payloads_of
from faststream_outbox.storage.sessions.unit_of_work import UnitOfWork

_ScopedSession = async_scoped_session[AsyncSession] | scoped_session[Session]
AnyOrmSession = AsyncSession | Session | _ScopedSession
# Gives a command to a producer, through the publish middlewares.
Submit = Callable[[OutboxPublishCommand, ProducerProto[Any]], Coroutine[Any, Any, Any]]


class CollectingProducer(OutboxProducer):
    """Makes and checks rows as any producer does, and keeps them for the commit of their session."""

    @property
    def place(self) -> str:
        """The table, by which the writers of a session are sorted."""
        return self.config.store.name

    def line_of(self, item: PendingRows) -> tuple[str, str, str | None]:
        """Return the table, the queue and the key of a message: its rows have the same."""
        row = item.rows[0]
        return self.place, row.queue, row.key

    async def _write(self, cmd: OutboxPublishCommand, rows: Sequence[NewRow]) -> list[int]:
        if rows:
            if len(rows) > 1:
                check_batch(rows)
            session: Any = cmd.session
            cmd.collected = self.keep(session, UnitOfWork.of(session), rows, cmd.timer_conflict)
        return []

    def keep(
        self, session: Session, unit: UnitOfWork, rows: Sequence[NewRow], timer_conflict: TimerConflict
    ) -> CollectedMessage:
        """Keep the rows of a message for the commit of the session."""
        before: PendingRows | None = unit.last(self)
        size = 0 if before is None else before.size
        size += len(rows[0].payload) if len(rows) == 1 else sum(map(len, payloads_of(rows)))
        check_collected(size)
        message = CollectedMessage()
        unit.add(session, self, PendingRows(message, rows, timer_conflict, size))
        return message

    def write(self, session: Session, items: Sequence[PendingRows]) -> None:
        """Insert these rows in one statement."""
        producer = cast("OutboxProducer", self.config.producer)  # of a test, perhaps
        producer.insert_collected(session, items)


class OutboxCollector:
    """Collects messages for the commit of a session; made by `broker.collect(session)`.

    The session writes them with one statement when it commits, after its own changes. A rollback drops them, that of a
    savepoint those of the savepoint. The collector serves all transactions of its session. That of a scoped session
    asks it at each `publish` which session is that of the thread, the task or the request.

    Example:
        outbox = broker.collect(session)
        outbox.publish({"order_id": 1}, queue="orders")
        await session.commit()

    """

    def __init__(
        self, producer: CollectingProducer, submit: Submit, session: AnyOrmSession | None, *, events: bool = False
    ) -> None:
        self._producer = producer
        self._submit = submit
        # Without transactions, in a test in memory, there is nothing to wait for.
        waits = producer.config.store.has_transactions or not (session is None or isinstance(session, NonCallableMock))
        self._session: Session | None = None
        self._unit: UnitOfWork | None = None
        # A scoped session has a session for each thread, task or request: which one is asked for at each message.
        self._scoped: _ScopedSession | None = None
        if isinstance(session, scoped_session | async_scoped_session):
            if events:
                raise ValueError(
                    "Events are taken from the objects of one session, and a scoped session has many: in each request "
                    "or task collect(scoped(), events=True)."
                )
            self._scoped = session
        elif waits:
            self._session = _sync_session(session)
            self._unit = UnitOfWork.of(self._session)
            if events:
                self._collect_events(self._unit)

    def publish(
        self,
        body: Any = None,
        queue: str = "",
        *,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> CollectedMessage:
        """Collect one message; it is inserted when the session commits.

        Wrong values raise here, and not at the commit. Middlewares run here too, and cannot await anything.

        Args:
            body: Anything FastStream can encode; bytes are stored unchanged.
            queue: The name of the queue.
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
            The collected message: after the commit, its `id` is the id of the row.

        """
        config, session, unit = self._producer.config, self._session, self._unit
        if self._scoped is not None:
            session = _sync_session(self._scoped())
            unit = UnitOfWork.of(session)
        producer = cast("OutboxProducer", config.producer)
        if unit is not None and session is not None and producer.is_direct:
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
            return self._producer.keep(session, unit, (row,), timer_conflict)
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
        cmd.synchronous = True
        config.give_correlation_id(cmd)
        if session is None:
            row_id = run_now(self._submit(cmd, config.producer), "collect")
            return CollectedMessage([row_id])
        run_now(self._submit(cmd, self._producer), "collect")
        return cmd.collected or CollectedMessage(())  # a middleware has removed it

    def _collect_events(self, unit: UnitOfWork) -> None:
        if unit.event_writer not in (None, self._producer):
            raise ValueError(
                "Another broker takes the events of this session's objects already: collect without events=True."
            )
        unit.event_writer, unit.return_events = self._producer, return_events
        unit.take_events = partial(self._take_events, unit)

    def _take_events(self, unit: UnitOfWork, objects: Iterable[object]) -> None:
        taken = list(take_events(objects))
        unit.taken += taken  # before one of them raises, which fails the flush
        for _, recorded in taken:
            event = event_of(recorded)
            self.publish(
                event.body,
                event.queue,
                headers=event.headers,
                correlation_id=event.correlation_id,
                reply_to=event.reply_to,
                key=event.key,
                activate_in=event.activate_in,
                activate_at=event.activate_at,
                timer_id=event.timer_id,
                timer_conflict=event.timer_conflict,
            )


def _sync_session(session: Any) -> Session:
    """Return the synchronous session behind a session; raise `TypeError` for anything else."""
    is_session = isinstance(session, AsyncSession | Session)
    if is_session and not isinstance(session, NonCallableMock) and (found := sync_session_of(session)) is not None:
        return found
    raise TypeError(
        f"collect takes the AsyncSession or Session whose commit inserts the messages, not {type(session).__name__}. "
        "Publish through a connection with broker.publish(…, session=connection)."
    )
