"""Events that mapped objects record, and that are published with the changes of these objects."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, cast

from sqlalchemy import Connection, event, inspect
from sqlalchemy.orm import Mapper, Session, object_session
from sqlalchemy.orm.attributes import flag_dirty

from faststream_outbox.storage import TimerConflict
from faststream_outbox.storage.checks import check_name, check_schedule
from faststream_outbox.storage.publishing import check_timer_conflict
from faststream_outbox.storage.sessions.unit_of_work import UnitOfWork

# Where an object keeps its events: in its own `__dict__`, beside its columns.
_EVENTS: Final = "_outbox_events"


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A message that an object has recorded; it is published when the session of the object commits.

    Args:
        body: Anything FastStream can encode; bytes are stored unchanged.
        queue: The name of the queue.
        headers: Names with values that JSON can hold.
        correlation_id: Given to the handler, and to the messages that it publishes.
        reply_to: The queue for the answer.
        key: Messages with the same key are delivered in the order of their commits, one at a time.
        activate_in: The delay before the message is delivered.
        activate_at: The time at which the message is delivered; with a time zone.
        timer_id: A name that at most one waiting message of the queue has.
        timer_conflict: If such a message waits: "ignore" the new one, or "extend" the delay of the waiting one.

    Example:
        order.events.append(
            OutboxEvent({"order_id": order.id}, queue="orders", key=str(order.id))
        )

    """

    body: Any
    queue: str
    headers: Mapping[str, Any] | None = None
    correlation_id: str | None = None
    reply_to: str = ""
    key: str | None = None
    activate_in: timedelta | None = None
    activate_at: datetime | None = None
    timer_id: str | None = None
    timer_conflict: TimerConflict = "ignore"

    def __post_init__(self) -> None:
        # Checked here, so that the error is raised where the event is made, and not in a flush.
        check_name("queue", self.queue)
        for name, value in (("key", self.key), ("timer_id", self.timer_id)):
            if value is not None:
                check_name(name, value)
        check_schedule(self.activate_in, self.activate_at)
        check_timer_conflict(self.timer_conflict, self.timer_id)


# An event, or a function that makes it after the flush.
RecordedEvent: TypeAlias = OutboxEvent | Callable[[], OutboxEvent]


class RecordsEvents:
    """A mixin for mapped classes. Its objects record events, which their session publishes when it commits.

    The session collects them with `broker.collect(session, events=True)`; in one that does not, a flush of objects with
    events raises. Events are taken at each flush, after the changes of the objects; a rollback drops them, that of a
    savepoint those of the savepoint. An object that was new gets them back with the rollback, and publishes them if it
    is added again.

    Example:
        class Order(RecordsEvents, Base):
            __tablename__ = "orders"
            id: Mapped[int] = mapped_column(primary_key=True)
            paid: Mapped[bool] = mapped_column(default=False)

            def pay(self) -> None:
                self.paid = True
                self.events.append(
                    OutboxEvent({"order_id": self.id}, queue="paid", key=str(self.id))
                )

    """

    @property
    def events(self) -> list[RecordedEvent]:
        """The events of this object that no flush has taken yet: a list to append to.

        A function is called after the flush, when a new object has the id that the database gave it.
        """
        # The session keeps an object that was changed until it is flushed, and takes its events then. Of an object that
        # only recorded an event it would know nothing.
        flag_dirty(self)
        events: list[RecordedEvent] = self.__dict__.setdefault(_EVENTS, [])
        return events


def take_events(objects: Iterable[object]) -> Iterator[tuple[object, RecordedEvent]]:
    """Return the events that these objects have recorded, each with its object, and empty their lists."""
    for each in objects:
        if isinstance(each, RecordsEvents):
            for recorded in each.__dict__.pop(_EVENTS, ()):
                yield each, recorded


def event_of(recorded: Any) -> OutboxEvent:
    """Return a recorded event, made by its function if it is one; raise `TypeError` for anything else."""
    if isinstance(recorded, OutboxEvent):
        return recorded
    wrong = f"a {type(recorded).__name__}"
    if callable(recorded):
        made = recorded()
        if isinstance(made, OutboxEvent):
            return made
        wrong = f"a function that returned a {type(made).__name__}"
    raise TypeError(f"The events of an object hold {wrong}: append an OutboxEvent, or a function that returns one.")


def return_events(taken: Iterable[tuple[object, RecordedEvent]]) -> None:
    """Give events back to objects that a rollback has made new again: with their values they may be added again."""
    returned = defaultdict[int, list[RecordedEvent]](list)
    objects = dict[int, Any]()
    for each, recorded in taken:
        objects[id(each)] = each
        returned[id(each)].append(recorded)
    for number, each in objects.items():
        if inspect(each).transient:
            each.__dict__[_EVENTS] = returned[number] + each.__dict__.get(_EVENTS, [])


def refuse_events(objects: Iterable[object]) -> None:
    """Raise if one of these objects has recorded events, in a session that nobody takes them from."""
    for each in objects:
        if isinstance(each, RecordsEvents) and each.__dict__.get(_EVENTS):
            kind = type(each).__name__
            raise RuntimeError(
                f"An object of {kind} has recorded events, and its session does not collect them: its changes would be "
                "saved without their messages. Call broker.collect(session, events=True) when you open the session. To "
                "save without messages, call events.clear() on the object before."
            )


def _need_collector(_mapper: Mapper[Any], _connection: Connection, each: RecordsEvents) -> None:
    """Refuse events at the end of the flush that writes this object, unless a collector takes them."""
    unit = UnitOfWork.of(cast("Session", object_session(each)))
    if unit.take_events is None:
        unit.take_events = refuse_events


def _drop_events(each: RecordsEvents, attributes: Iterable[str] | None) -> None:
    """Forget what an object has recorded together with changes of it that will not be written."""
    if attributes is None:
        each.__dict__.pop(_EVENTS, None)


# After a rollback, and where the program discards changes by `expire` or `refresh`: an object that kept its events
# would publish them with its next change.
event.listen(RecordsEvents, "expire", _drop_events, propagate=True)

# In all sessions, also those that no collector knows. An object that only recorded events is updated too, without SQL.
for _change in ("before_insert", "before_update", "before_delete"):
    event.listen(RecordsEvents, _change, _need_collector, propagate=True)
