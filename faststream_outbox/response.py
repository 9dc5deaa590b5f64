"""What travels from a publisher to the producer (`OutboxPublishCommand`), and what a handler may return."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any

from faststream.response import PublishCommand, PublishType, Response
from faststream.response.response import BatchPublishCommand
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from faststream_outbox.envelope import CORRELATION_ID
from faststream_outbox.storage import AnySession, TimerConflict
from faststream_outbox.storage.checks import check_name, check_schedule
from faststream_outbox.storage.contract import check_timer_conflict

if TYPE_CHECKING:
    from faststream_outbox.message import OutboxDelivery


def check_asynchronous(session: object) -> None:
    """Refuse a synchronous session where waiting for it would keep the event loop."""
    if isinstance(session, Session | Connection):
        kind = type(session).__name__
        raise TypeError(
            f"session is a synchronous {kind}: use broker.publish_sync(…), or publish through an AsyncSession."
        )


def check_synchronous(session: object) -> None:
    """Refuse an asynchronous session where there is nothing to wait with."""
    if isinstance(session, AsyncSession | AsyncConnection | async_scoped_session):
        kind = type(session).__name__
        raise TypeError(f"session is an {kind}: use await broker.publish(…), or publish_sync through a Session.")
    if not isinstance(session, Session | Connection | scoped_session | NoneType):
        kind = type(session).__name__
        raise TypeError(f"session is the Session or Connection of your open transaction, not {kind}.")


class OutboxPublishCommand(BatchPublishCommand):
    """One message, or several for one queue, and the transaction that they are part of."""

    def __init__(
        self,
        body: Any,
        /,
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
        check_timer_conflict(timer_conflict)
        if headers is not None and not isinstance(headers, Mapping):
            raise TypeError(f"headers is a mapping of names to values, not {type(headers).__name__}.")
        if timer_conflict != "ignore" and timer_id is None:
            raise ValueError(f"timer_conflict={timer_conflict!r} says what to do with a timer: give its timer_id.")
        super().__init__(
            body,
            *bodies,
            _publish_type=_publish_type,
            destination=queue,
            correlation_id=correlation_id,
            headers=None if headers is None else dict(headers),
            reply_to=reply_to,
        )
        self.session = session
        self.key = key
        self.keys = keys
        self.activate_in = activate_in
        self.activate_at = activate_at
        self.timer_id = timer_id
        self.timer_conflict = timer_conflict
        # The delivery in whose settling the rows are to be inserted, where there is no session.
        self.answers: OutboxDelivery | None = None
        # Whether there is no event loop to wait on: `publish_sync`.
        self.synchronous = False
        # A handler's answer to no delivery of ours is written in a transaction of its own.
        self.alone = False

    @property
    def queue(self) -> str:
        """The queue; FastStream calls it the destination."""
        return self.destination

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """All bodies, of which None is one: it is an empty message."""
        return (self.body, *self.extra_bodies)

    @batch_bodies.setter
    def batch_bodies(self, value: Sequence[Any]) -> None:
        if self.keys is not None:
            self.keys = _follow(self.batch_bodies, self.keys, value)
        self.body, *rest = value or (None,)
        self.extra_bodies = tuple(rest)

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "OutboxPublishCommand":
        """Make one of what a handler returned."""
        if isinstance(cmd, OutboxPublishCommand):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            queue=cmd.destination,
            session=None,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            key=_key(cmd.get_publish_key()),
            _publish_type=cmd.publish_type,
        )

    def get_publish_key(self) -> str | None:
        """Return the ordering key, under the name by which publishers of other brokers ask for it."""
        return self.key


def _follow(before: Sequence[Any], keys: Sequence[str | None], after: Sequence[Any]) -> Sequence[str | None]:
    """Let each key go where its body went, as a middleware may sort bodies or drop some; else they stay in place."""
    left: defaultdict[int, deque[str | None]] = defaultdict(deque)
    for body, key in zip(before, keys, strict=False):
        left[id(body)].append(key)
    followed: list[str | None] = []
    for body in after:
        if not left[id(body)]:
            return keys
        followed.append(left[id(body)].popleft())
    return followed


def _key(key: object) -> str | None:
    # Another broker's answer may carry a key too, and Kafka's are bytes.
    return key.decode() if isinstance(key, bytes) else key if isinstance(key, str) else None


class OutboxResponse(Response):
    """What a handler returns to publish with more than a body.

    With a `queue` it goes there; without one, to wherever the handler's publishers, or the message's `reply_to`, lead.
    With a `session` it is written in that transaction, which must still be open when the handler returns; without one,
    in the statement that settles the message at hand.

    Example:
        @broker.subscriber("orders")
        async def handle(order_id: int) -> OutboxResponse:
            return OutboxResponse({"order_id": order_id}, queue="reminders", activate_in=timedelta(days=1))

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
        # Refused where it is written, not after the handler has returned.
        if queue:
            check_name("queue", queue)
        for name, value in (("key", key), ("timer_id", timer_id)):
            if value is not None:
                check_name(name, value)
        check_schedule(activate_in, activate_at)
        if timer_conflict == "extend" and session is None:
            raise ValueError('timer_conflict="extend" needs a session: what settles a message only adds timers.')
        if correlation_id is None and headers is not None:
            correlation_id = headers.get(CORRELATION_ID)  # or else the message's own would be passed on
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
        """Turn into what publishers take."""
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
        """Return the ordering key, under the name by which publishers of other brokers ask for it."""
        return self.key
