"""The rows of a store in memory, in a dict, and the changes that its lanes and operators make to them."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count, groupby
from typing import Any
from uuid import UUID

from faststream_outbox.storage.ordering.strategies import Shard
from faststream_outbox.storage.outcomes import Dead, FailureReason, clean_exception_text
from faststream_outbox.storage.parking import Cause, with_cause, without_cause
from faststream_outbox.storage.rows import NewRow, OutboxRow, to_datetime


@dataclass(slots=True)
class DeadRow:
    """What the dead-letter table keeps of a row."""

    original_id: int
    row: OutboxRow
    failed_at: datetime
    failure_reason: FailureReason
    last_exception: str | None
    id: int = 0

    def __getitem__(self, column: str) -> Any:
        """Read a column by its name, as from a row of the table."""
        return getattr(self if column in self.__slots__ else self.row, column)


class MemoryTable:
    """Rows in a dict; `clock` returns epoch seconds and stands for the database's."""

    def __init__(self, *, keep_dead: bool, clock: Callable[[], float]) -> None:
        self.rows: dict[int, OutboxRow] = {}
        self.dead: list[DeadRow] = []
        self.clock = clock
        # Who holds which shard, and until when.
        self.shards = dict[Shard, tuple[UUID, float]]()
        self.keeps_dead = keep_dead
        self._ids = count(1)
        self._dead_ids = count(1)

    def bury(self, row: OutboxRow, outcome: Dead) -> None:
        """Move a row to `dead`, as the dead-letter table would keep it."""
        del self.rows[row.id]
        if not self.keeps_dead:
            return
        _write_failure(row, outcome)
        row.headers_json = without_cause(row.headers_json)
        text = clean_exception_text(outcome.last_exception)
        failed_at = to_datetime(self.clock())
        self.dead.append(DeadRow(row.id, row, failed_at, outcome.reason, text, next(self._dead_ids)))

    def park(self, row: OutboxRow, outcome: Dead) -> None:
        """Keep a row at the head of its key, never due, with the cause among its headers."""
        _write_failure(row, outcome)
        unlease(row)
        row.next_attempt_epoch = math.inf
        cause = Cause(outcome.reason, clean_exception_text(outcome.last_exception), self.clock())
        row.headers_json = with_cause(row.headers_json, cause)

    def is_parked(self, row: OutboxRow) -> bool:
        """Return whether a row waits in a key that is parked."""
        place = (row.queue, row.entity_key)
        return row.entity_key is not None and any(
            (each.queue, each.entity_key) == place and each.next_attempt_epoch == math.inf
            for each in self.rows.values()
        )

    def rows_by_key(self) -> Iterator[list[OutboxRow]]:
        """Yield the rows of each key, the head first, by queue and key."""
        keyed = [row for row in self.rows.values() if row.entity_key is not None]
        keyed.sort(key=lambda row: (row.queue, row.entity_key, row.id))
        for _, rows in groupby(keyed, key=lambda row: (row.queue, row.entity_key)):
            yield list(rows)

    def heads(self) -> dict[tuple[str, str | None], OutboxRow]:
        """Return the first row of each key, by queue and key."""
        return {(rows[0].queue, rows[0].entity_key): rows[0] for rows in self.rows_by_key()}

    def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Count the due rows of queues that are not in `known` and of which no row is leased."""
        now = self.clock()
        heads = self.heads()
        leased = {row.queue for row in self.rows.values() if row.lease_expires_epoch > now}
        counts = Counter(
            row.queue
            for row in self.rows.values()
            if row.next_attempt_epoch <= now
            and heads.get((row.queue, row.entity_key), row).next_attempt_epoch <= now
            and row.queue not in leased
            and row.queue not in known
        )
        return dict(sorted(counts.items()))

    def timer(self, queue: str, timer_id: str) -> OutboxRow | None:
        """Return the row that has this timer."""
        return next((r for r in self.rows.values() if (r.queue, r.timer_id) == (queue, timer_id)), None)

    def add_unless_waiting(self, row: NewRow) -> tuple[int | None, OutboxRow | None]:
        """Insert a row and return its id, or return the row that has its timer already."""
        waiting = None if row.timer_id is None else self.timer(row.queue, row.timer_id)
        if waiting is None:
            return self.add(row), None
        next(self._ids)  # Postgres too draws an id before it finds the conflict
        return None, waiting

    def add(self, row: NewRow) -> int:
        """Insert a row and return its id."""
        row_id, now = next(self._ids), self.clock()
        self.rows[row_id] = OutboxRow(
            id=row_id,
            queue=row.queue,
            entity_key=row.key,
            payload=row.payload,
            headers_json=row.headers_json,
            timer_id=row.timer_id,
            created_epoch=now,
            next_attempt_epoch=due_of(row, now),
        )
        return row_id


def unlease(row: OutboxRow) -> None:
    """Make a row free."""
    row.acquired_token, row.acquired_epoch, row.lease_expires_epoch = None, None, -math.inf


def _write_failure(row: OutboxRow, outcome: Dead) -> None:
    if outcome.attempts_count is not None:
        row.attempts_count = outcome.attempts_count
    if outcome.first_attempt_at is not None:
        row.first_attempt_epoch = outcome.first_attempt_at.timestamp()
    if outcome.last_attempt_at is not None:
        row.last_attempt_epoch = outcome.last_attempt_at.timestamp()


def due_of(row: NewRow, now: float) -> float:
    """Return when a new row is due."""
    return row.due_epoch if row.due_epoch is not None else now + (row.delay_seconds or 0.0)
