"""The numbers of rows of one queue, as `broker.stats()` returns them."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue as an operator sees it. Ages are seconds by the database's clock, None where there is no such row.

    Attributes:
        queue: The name of the queue.
        ready: Rows that can be claimed; those with a key only if their head, the first row, can. Behind a head that is
            ready each row counts by itself, although one that is not due yet will stop those after it.
        scheduled: Rows that are not due yet.
        in_flight: Rows whose lease holds.
        expired: Rows whose lease expired before they were settled.
        blocked: Rows behind a head that cannot be claimed, also while it is being handled; and a head that is parked.
        dead: Rows of the queue in the dead-letter table.
        blocked_keys: The keys that `fetch_keys` lists: retrying, delayed, parked, expired.
        parked_keys: The keys that wait for an operator.
        oldest_ready_age: How long the oldest row that could be claimed has waited.
        oldest_age: How long ago the oldest row was published.
        oldest_due_age: For how long the oldest row has been due that is ready, in flight or expired.
        capped: Whether counting stopped, at 100,000 rows of one sort: the numbers are lower bounds then.

    """

    queue: str
    ready: int = 0
    scheduled: int = 0
    in_flight: int = 0
    expired: int = 0
    blocked: int = 0
    dead: int = 0
    blocked_keys: int = 0
    parked_keys: int = 0
    oldest_ready_age: float | None = None
    oldest_age: float | None = None
    oldest_due_age: float | None = None
    capped: bool = False

    @property
    def total(self) -> int:
        """The number of rows of the queue that are not settled yet."""
        return self.ready + self.scheduled + self.in_flight + self.expired + self.blocked


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The numbers of one queue, and of which sorts of rows there are more than were counted.

    Attributes:
        stats: The numbers.
        retrying: Rows that failed and are not due yet.
        oldest_claimable_age: How long the oldest row has been due that is ready or expired.
        more_due: There are more rows without a key that are due.
        more_later: There are more rows without a key that are due later.
        more_keyed: There are more rows with a key.
        more_keys: There are more keys.
        more_dead: There are more dead letters.

    """

    stats: QueueStats
    retrying: int = 0
    oldest_claimable_age: float | None = None
    more_due: bool = False
    more_later: bool = False
    more_keyed: bool = False
    more_keys: bool = False
    more_dead: bool = False

    @classmethod
    def of(cls, *record: Any) -> "QueueCounts":
        """Make it of a record: the fields of `QueueStats`, then those after `stats`."""
        *numbers, retrying, claimable, due, later, keyed, keys, dead = record
        return cls(QueueStats(*numbers), retrying, claimable, due, later, keyed, keys, dead)

    def to_stats(self) -> QueueStats:
        """Return the numbers, and whether counting stopped."""
        capped = self.more_due or self.more_later or self.more_keyed or self.more_dead
        return replace(self.stats, capped=capped)
