"""The options of a subscriber: one name, one default and one check each, from `broker.subscriber(…)` to the loops."""

from dataclasses import dataclass, field
from typing import Final

from faststream_outbox.retry import AnyRetryStrategy, check_strategy
from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.ordering import HeadLease, Ordering, check_ordering
from faststream_outbox.storage.outcomes import OnDead

# A longer interval or lease is probably a mistake of units.
_LONGEST_SECONDS: Final = 7 * 86_400.0
# Each worker is a task of the process; so many take a second to start, and Python can hardly use more.
_MOST_WORKERS: Final = 10_000
# The rows of one statement or one call are in memory together.
_MOST_ROWS: Final = 100_000
# Large enough that the cost of a round trip per row is small; small enough to be handled within a lease.
_ROWS_PER_CLAIM: Final = 250
# What one statement settles by default; a larger batch saves nothing.
_ROWS_PER_BATCH: Final = 500
# The rows of one key are handled one after the other and settled together; a crash delivers so many again at most.
_ROWS_PER_KEY: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """How a subscriber claims, dispatches and settles.

    The names are the keywords of `broker.subscriber(…)`, which explains them to users. A value that cannot work raises
    `TypeError` or `ValueError` here.
    """

    # One: handlers need not be safe to run side by side until the user says so.
    max_workers: int = 1
    # None: `rows_per_claim` decides, because a claim should fill at least one batch.
    fetch_batch_size: int | None = None
    # Notifications wake a claimer at once. These bound how long a row waits whose notification was lost, and are long
    # because each look costs the database a query.
    min_fetch_interval: float = 1.0
    max_fetch_interval: float = 10.0
    # Leases are renewed while a handler runs, so this need not be longer than a handler. It is how long the rows of a
    # process that died must wait; a shorter one would let a short stall lose leases.
    lease_ttl_seconds: float = 60.0
    # None: a restart counts as a delivery too, so the number says little about the message.
    max_deliveries: int | None = None
    # A message that failed for good must not stop the messages behind it unless the user has decided so.
    on_dead: OnDead = "skip"
    # None: `retry.DEFAULT_RETRY`.
    retry_strategy: AnyRetryStrategy | None = None
    # Outcomes are written when the settler is free, so the sizes bound a statement, not a wait. Acknowledged rows are
    # written at once because a crash would deliver them again. Failed rows wait for a second or more anyway, so a tenth
    # more is no loss; their batch is smaller, because fewer rows fail than are in hand.
    terminal_batch_size: int = 500
    terminal_flush_interval_ms: float = 0.0
    retry_batch_size: int = 100
    retry_flush_interval_ms: float = 100.0
    # max_records=None: `rows_per_call` decides. No wait: rows gather while the handler runs, so a busy subscriber has
    # large batches and an idle one has no delay.
    batch: bool = False
    max_records: int | None = None
    max_wait_ms: float = 0.0
    # Needs no setup, and the others are not faster by more than the benchmark can tell ("strategies side by side").
    ordering: Ordering = field(default_factory=HeadLease)
    # What a handler returns is a new message; headers of the old one may not fit it.
    propagate_inbound_headers: bool = False
    # A broker that is up confirms in milliseconds; a cluster that elects a leader needs some seconds.
    publish_timeout: float | None = 30.0

    def __post_init__(self) -> None:
        check_count("max_workers", self.max_workers, most=_MOST_WORKERS, instead="start more processes")
        for name in ("terminal_batch_size", "retry_batch_size"):
            _check_rows(name, getattr(self, name))
        for name in ("fetch_batch_size", "max_records"):
            if getattr(self, name) is not None:
                _check_rows(name, getattr(self, name))
        if self.max_deliveries is not None:
            check_count("max_deliveries", self.max_deliveries)
        for name in ("min_fetch_interval", "max_fetch_interval", "lease_ttl_seconds"):
            _check_seconds(name, getattr(self, name))
        if self.publish_timeout is not None:
            _check_seconds("publish_timeout", self.publish_timeout)
        _check_on_dead(self.on_dead)
        check_strategy(self.retry_strategy)
        check_ordering(self.ordering)
        self._check_waits()
        self._check_batch()
        if self.min_fetch_interval > self.max_fetch_interval:
            raise ValueError(
                f"min_fetch_interval ({self.min_fetch_interval:g}) is more than max_fetch_interval "
                f"({self.max_fetch_interval:g}): lower the first or raise the second."
            )

    def _check_waits(self) -> None:
        for name in ("terminal_flush_interval_ms", "retry_flush_interval_ms", "max_wait_ms"):
            if check_number(name, getattr(self, name)) / 1000 * 2 > self.lease_ttl_seconds:
                raise ValueError(f"{name} must be well below lease_ttl_seconds: the row is leased while it waits.")

    def _check_batch(self) -> None:
        if not isinstance(self.batch, bool):
            raise TypeError(f"batch is True or False, not {self.batch!r}. The size of a batch is max_records.")
        if not self.batch and (self.max_records is not None or self.max_wait_ms):
            raise ValueError("max_records and max_wait_ms are about batches: give batch=True too, or leave them out.")

    @property
    def rows_per_call(self) -> int:
        """How many rows one call of the handler takes at most."""
        if not self.batch:
            return 1
        return _ROWS_PER_BATCH if self.max_records is None else self.max_records

    @property
    def rows_per_claim(self) -> int:
        """How many rows one statement claims at most."""
        if self.fetch_batch_size is None:
            return max(_ROWS_PER_CLAIM, self.rows_per_call)
        return self.fetch_batch_size

    @property
    def rows_per_key(self) -> int:
        """How many rows of one key are claimed together: one call's, or as many as are settled together."""
        return self.rows_per_call if self.batch else _ROWS_PER_KEY

    @property
    def capacity(self) -> int:
        """How many rows are in hand at most: one batch that runs, and one that waits."""
        return 2 * max(self.rows_per_claim, self.max_workers * self.rows_per_call)


def _check_on_dead(value: object) -> None:
    if value not in ("skip", "park"):
        raise ValueError(
            'on_dead is "skip" (a dead message goes to the dead-letter table, and its key goes on) or "park" (it stays '
            f"at the head of its key, which waits for an operator), not {value!r}."
        )


def _check_rows(name: str, value: object) -> None:
    check_count(name, value, most=_MOST_ROWS, instead="give a smaller number, because more rows at once save nothing")


def _check_seconds(name: str, value: object) -> None:
    if not 0 < check_number(name, value) <= _LONGEST_SECONDS:
        raise ValueError(f"{name} is more than 0 seconds, and {_LONGEST_SECONDS:g} (a week) at most, not {value!r}.")


# The public signatures take their defaults from here.
DEFAULTS: Final = SubscriberOptions()
