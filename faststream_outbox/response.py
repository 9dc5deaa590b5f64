"""The command that a publisher gives to the producer, and the response that a handler may return."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import NoneType
from typing import Any
from unittest.mock import NonCallableMock

from faststream.response import PublishCommand, PublishType, Response
from faststream.response.response import BatchPublishCommand
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from faststream_outbox.envelope import CORRELATION_ID
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.storage import AnySession, TimerConflict
from faststream_outbox.storage.checks import check_name, check_schedule
from faststream_outbox.storage.publishing import check_session, check_timer_conflict
from faststream_outbox.storage.sessions.raw import raw_connection


def check_asynchronous(session: object) -> None:
    """Raise `TypeError` for a synchronous session: it would block the event loop."""
    if isinstance(session, Session | Connection) or not _runs_in(session, asynchronous=True):
        kind = type(session).__name__
        raise TypeError(
            f"session is a synchronous {kind}: use broker.publish_sync(…), or publish through an AsyncSession."
        )


def _runs_in(session: object, *, asynchronous: bool) -> bool:
    """Return whether code of this kind may use what is, perhaps, a driver's connection."""
    raw = raw_connection(session)
    return raw is None or raw.asynchronous is asynchronous


def check_synchronous(session: object) -> None:
    """Raise `TypeError` for an asynchronous session: `publish_sync` has no event loop."""
    kind = type(session).__name__
    if isinstance(session, AsyncSession | AsyncConnection | async_scoped_session) or not _runs_in(
        session, asynchronous=False
    ):
        raise TypeError(
            f"session is an asynchronous {kind}: use await broker.publish(…), or publish_sync through a Session."
        )
    if not isinstance(session, Session | Connection | scoped_session | NoneType) and raw_connection(session) is None:
        raise TypeError(
            f"session must be the Session or Connection of your open transaction, or psycopg's connection, not {kind}."
        )


class CollectedMessage:
    """A message that waits for the commit of its session.

    Example:
        message = outbox.publish({"order_id": 1}, queue="orders")
        await session.commit()
        print(message.id)

    """

    __slots__ = ("_ids",)

    def __init__(self, ids: Sequence[int | None] | None = None) -> None:
        # The ids of its rows, once they are inserted. A middleware may have made several of it, or none.
        self._ids = ids

    @property
    def id(self) -> int | None:
        """The id of the row, after the commit; None if a message with this `timer_id` waited already."""
        if self._ids is None:
            raise RuntimeError(
                "This message has no id: the session that collected it has not committed yet, or was rolled back."
            )
        return self._ids[0] if self._ids else None


class OutboxPublishCommand(BatchPublishCommand):
    """The messages of one publish, for one queue, and the transaction that inserts them.

    A publish middleware may replace, add and remove bodies. A body None is an empty message; no bodies are no message.
    """

    # Without a session, the rows are inserted by the statement that settles this delivery.
    answered: OutboxDelivery | None = None
    # Whether the rows are inserted in a new transaction: an answer to a message of another broker.
    own_transaction: bool = False
    # Whether there is no event loop: `publish_sync`.
    synchronous: bool = False
    # The message as it waits for the commit of its session, if it was collected.
    collected: CollectedMessage | None = None
    _bodies: tuple[Any, ...] = ()

    def __init__(
        self,
        *bodies: Any,
        queue: str,
        session: AnySession,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
        _publish_type: PublishType = PublishType.PUBLISH,
    ) -> None:
        check_timer_conflict(timer_conflict, timer_id)
        if headers is not None and not isinstance(headers, Mapping):
            raise TypeError(f"headers must be a mapping of names to values, not {type(headers).__name__}.")
        super().__init__(
            None,
            _publish_type=_publish_type,
            destination=queue,
            correlation_id=correlation_id,
            headers=None if headers is None else dict(headers),
            reply_to=reply_to,
        )
        self._bodies = bodies
        self.session = session
        self.key = key
        self.keys = keys
        self.activate_in = activate_in
        self.activate_at = activate_at
        self.timer_id = timer_id
        self.timer_conflict = timer_conflict

    @property
    def queue(self) -> str:
        """The queue, which FastStream calls destination."""
        return self.destination

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """All bodies."""
        return self._bodies

    @batch_bodies.setter
    def batch_bodies(self, value: Sequence[Any]) -> None:
        bodies = tuple(value)
        if self.keys is not None:
            self.keys = _keys_after(self._bodies, self.keys, bodies)
        self._bodies = bodies

    @property
    def body(self) -> Any:
        """The first body; None also when there are no bodies."""
        return self._bodies[0] if self._bodies else None

    @body.setter
    def body(self, value: Any) -> None:
        # A middleware that changes `body` of a command without bodies gives back the None that it read.
        if self._bodies or value is not None:
            self._bodies = (value, *self._bodies[1:])

    @property
    def extra_bodies(self) -> tuple[Any, ...]:
        """The bodies behind the first."""
        return self._bodies[1:]

    @extra_bodies.setter
    def extra_bodies(self, value: Sequence[Any]) -> None:
        self._bodies = (*self._bodies[:1], *value)

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "OutboxPublishCommand":
        """Return the command for what a handler returned."""
        if isinstance(cmd, OutboxPublishCommand):
            return cmd
        batched = batch and isinstance(cmd.body, Sequence) and not isinstance(cmd.body, str | bytes)
        return cls(
            *(cmd.body if batched else (cmd.body,)),
            queue=cmd.destination,
            session=None,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            key=_key(cmd.get_publish_key()),
            _publish_type=cmd.publish_type,
        )

    def get_publish_key(self) -> str | None:
        """Return the key, under the name that publishers of other brokers use."""
        return self.key


def _keys_after(before: Sequence[Any], keys: Sequence[str | None], after: Sequence[Any]) -> Sequence[str | None]:
    """Return the keys in the order of the new bodies, which a middleware may have sorted or filtered.

    If it replaced a body, return the keys as they are.
    """
    left: defaultdict[int, deque[str | None]] = defaultdict(deque)
    for body, key in zip(before, keys, strict=False):
        left[id(body)].append(key)
    moved: list[str | None] = []
    for body in after:
        if not left[id(body)]:
            return keys
        moved.append(left[id(body)].popleft())
    return moved


def _key(key: object) -> str | None:
    # The response of another broker may have a key, and those of Kafka are bytes.
    return key.decode() if isinstance(key, bytes) else key if isinstance(key, str) else None


class OutboxResponse(Response):
    """A handler returns this to publish a body together with options.

    With a `queue` it is published there; without one, to the handler's publishers or the message's `reply_to`.
    With a `session` it is inserted in that transaction, which must still be open after the handler has returned, or it
    is refused; without one, by the statement that settles the handled message.

    Args:
        body: Anything FastStream can encode; bytes are stored unchanged.
        queue: The name of the queue.
        session: The session or connection of a transaction that is committed after the handler has returned.
        headers: Names with values that JSON can hold.
        correlation_id: By default that of the handled message, or its `outbox_id` if it has none.
        key: Messages with the same key are delivered in the order of their commits, one at a time.
        activate_in: The delay before the message is delivered.
        activate_at: The time at which the message is delivered; with a time zone.
        timer_id: A name that at most one waiting message of the queue has.
        timer_conflict: If such a message waits: "ignore" the new one, or "extend" the delay of the waiting one, which
            needs a session.

    Example:
        @broker.subscriber("orders")
        async def handle(order_id: int) -> OutboxResponse:
            return OutboxResponse(
                {"order_id": order_id}, queue="reminders", activate_in=timedelta(days=1)
            )

    """

    def __init__(
        self,
        body: Any,
        *,
        queue: str = "",
        session: AnySession = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        key: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> None:
        # Checked here, so that the error is raised in the handler and not after it.
        check_asynchronous(session)
        if session is not None and not isinstance(session, NonCallableMock):  # tests may use mocks of sessions
            check_session(session)
        if queue:
            check_name("queue", queue)
        for name, value in (("key", key), ("timer_id", timer_id)):
            if value is not None:
                check_name(name, value)
        check_schedule(activate_in, activate_at)
        if timer_conflict == "extend" and session is None:
            raise ValueError('timer_conflict="extend" needs a session: settling a message only adds timers.')
        if correlation_id is None and headers is not None:
            correlation_id = headers.get(CORRELATION_ID)  # otherwise FastStream uses the handled message's
        super().__init__(body, headers=None if headers is None else dict(headers), correlation_id=correlation_id)
        self.queue = queue
        self.session = session
        self.key = key
        self.activate_in = activate_in
        self.activate_at = activate_at
        self.timer_id = timer_id
        self.timer_conflict = timer_conflict
        self.as_publish_command()

    def as_publish_command(self) -> OutboxPublishCommand:
        """Return the command for the publishers."""
        return OutboxPublishCommand(
            self.body,
            queue=self.queue,
            session=self.session,
            headers=self.headers,
            correlation_id=self.correlation_id,
            key=self.key,
            activate_in=self.activate_in,
            activate_at=self.activate_at,
            timer_id=self.timer_id,
            timer_conflict=self.timer_conflict,
        )

    def get_publish_key(self) -> str | None:
        """Return the key, under the name that publishers of other brokers use."""
        return self.key
