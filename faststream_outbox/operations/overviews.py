"""What operators see of many rows at once: queues, keys, groups of dead letters, and what a search found."""

from dataclasses import dataclass
from datetime import datetime

from faststream_outbox.operations.views import DeadLetter, Message
from faststream_outbox.storage.operating.control import Pause
from faststream_outbox.storage.operating.filters import COUNT_CAP, Count, MessageState
from faststream_outbox.storage.operating.reads import LetterGroup
from faststream_outbox.storage.ordering.states import KeyState
from faststream_outbox.storage.queue_stats import QueueCounts
from faststream_outbox.storage.rows import to_datetime


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue at a glance. Counts are exact up to 10,000; `capped` ones are lower bounds.

    Attributes:
        queue: The name of the queue.
        ready: Messages that can be claimed; those with a key only if the first message of the key can.
        scheduled: Messages that are not due yet, those that retry included.
        in_flight: Messages that a process handles.
        expired: Messages whose lease ran out.
        retrying: Messages that failed, and are not due yet.
        blocked: Messages that wait behind another message of their key.
        blocked_keys: Keys that wait for something other than a subscriber.
        parked_keys: Keys that wait for an operator.
        dead: Dead letters of the queue.
        oldest_claimable_age: How long the oldest message that can be claimed has been due, those whose lease ran out
            included; None if none can.
        paused: The pause of the queue, if it is paused; needs the control table.
        nodes: How many living processes read the queue, as far as the table of nodes says; None without that table.

    """

    queue: str
    ready: Count
    scheduled: Count
    in_flight: Count
    expired: Count
    retrying: Count
    blocked: Count
    blocked_keys: Count
    parked_keys: Count
    dead: Count
    oldest_claimable_age: float | None
    paused: Pause | None = None
    nodes: int | None = None

    @classmethod
    def of(cls, counts: QueueCounts, *, paused: Pause | None = None, nodes: int | None = None) -> "QueueOverview":
        """Return the counts of a queue as operators see them."""
        stats = counts.stats
        due, later = counts.more_due or counts.more_keyed, counts.more_later or counts.more_keyed
        return cls(
            queue=stats.queue,
            ready=_count(stats.ready, more=due),
            scheduled=_count(stats.scheduled, more=later),
            in_flight=_count(stats.in_flight, more=due),
            expired=_count(stats.expired, more=due),
            retrying=_count(counts.retrying, more=later),
            blocked=_count(stats.blocked, more=counts.more_keyed),
            blocked_keys=_count(stats.blocked_keys, more=counts.more_keys),
            parked_keys=_count(stats.parked_keys, more=counts.more_keys),
            dead=_count(stats.dead, more=counts.more_dead),
            oldest_claimable_age=counts.oldest_claimable_age,
            paused=paused,
            nodes=nodes,
        )


def _count(number: int, *, more: bool) -> Count:
    return Count(min(number, COUNT_CAP), capped=more or number > COUNT_CAP)


@dataclass(frozen=True, slots=True)
class KeyDetail:
    """One key, and the messages that it has.

    Attributes:
        queue: The name of the queue.
        key: The key.
        state: The state of its first message, the head; `"ready"` if a subscriber can claim it.
        blocked: Why it waits, and for how long; None if it is ready.
        waiting: How many messages wait behind the head.
        messages: The first messages, the head first.

    """

    queue: str
    key: str
    state: MessageState
    blocked: KeyState | None
    waiting: Count
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one queue with the same reason and type of exception.

    Attributes:
        queue: The name of the queue.
        reason: `"max_deliveries"`, `"retry_terminal"` or `"rejected"`.
        exception_type: The type of the exception, with its module; None if there was none.
        count: How many there are among the newest 10,000 of the queue; capped if the queue has more.
        first_failed_at: When the first of them failed.
        last_failed_at: When the last of them failed.
        example_id: The id of the newest one, for `dead_letter()`.

    """

    queue: str
    reason: str
    exception_type: str | None
    count: Count
    first_failed_at: datetime
    last_failed_at: datetime
    example_id: int

    @classmethod
    def of(cls, group: LetterGroup) -> "DeadLetterGroup":
        """Return a group as operators see it."""
        return cls(
            queue=group.queue,
            reason=group.reason,
            exception_type=group.exception_type,
            count=group.count,
            first_failed_at=to_datetime(group.first_failed_epoch),
            last_failed_at=to_datetime(group.last_failed_epoch),
            example_id=group.example_id,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What has a correlation id.

    Attributes:
        messages: Messages in the outbox, by id.
        dead_letters: Dead letters, the newest first.
        complete: Whether there is no more: False if there are more than were asked for, or if the outbox is so large
            that only its oldest and newest messages were searched.

    """

    messages: list[Message]
    dead_letters: list[DeadLetter]
    complete: bool
