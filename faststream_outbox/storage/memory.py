"""The store in memory, for the tests of users: the same contract, without a database and without transactions."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count, islice
from operator import attrgetter
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from faststream_outbox.storage.base import (
    Claim,
    Listening,
    QueueStats,
    SessionOrConnection,
    Store,
    StoreConnection,
    TimerConflict,
    check_batch,
    check_row,
    check_timer_conflict,
)
from faststream_outbox.storage.checks import check_count, check_name, check_number
from faststream_outbox.storage.commits import AnySession
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.outcomes import (
    Ack,
    Dead,
    FailureReason,
    Outcome,
    Retry,
    Settled,
    Settlement,
    clean_exception_text,
)
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow, to_datetime

_NO_LEASE: Final = float("-inf")


@dataclass(slots=True)
class DeadRow:
    """What the dead-letter table keeps of a row."""

    original_id: int
    row: OutboxRow
    failed_at: datetime
    failure_reason: FailureReason
    last_exception: str | None

    def __getitem__(self, column: str) -> Any:
        """Read a column by its name, as from a row of the table."""
        return getattr(self if column in self.__slots__ else self.row, column)


class MemoryStore(Store):
    """Rows in a dict. A session is accepted and ignored: what is inserted is there at once, and nothing rolls back.

    `clock` returns epoch seconds and stands for the database's; a test moves it instead of waiting.
    """

    def __init__(self, *, keep_dead: bool = True, clock: Callable[[], float] = time.time) -> None:
        self.rows: dict[int, OutboxRow] = {}
        self.dead: list[DeadRow] = []
        self.clock = clock
        self._keep_dead = keep_dead
        self._ids = count(1)
        self._listeners: list[Callable[[str], None]] = []

    @property
    def keeps_dead(self) -> bool:
        """Whether `dead` is filled."""
        return self._keep_dead

    async def insert(
        self,
        session: SessionOrConnection | None,
        row: NewRow,
        *,
        timer_conflict: TimerConflict = "ignore",
        notify: bool = False,
    ) -> int | None:
        """Insert one row."""
        del session
        return self._insert(row, timer_conflict, notify=notify)

    def insert_sync(
        self,
        session: Session | Connection,
        row: NewRow,
        timer_conflict: TimerConflict = "ignore",
        *,
        notify: bool = False,
    ) -> int | None:
        """Insert one row."""
        del session
        return self._insert(row, timer_conflict, notify=notify)

    def _insert(self, row: NewRow, timer_conflict: TimerConflict, *, notify: bool) -> int | None:
        check_row(row)
        check_timer_conflict(timer_conflict)
        row_id, waiting = self.add_unless_waiting(row)
        if waiting is not None and timer_conflict == "extend" and waiting.acquired_token is None:
            waiting.next_attempt_epoch = max(waiting.next_attempt_epoch, _due(row, self.clock()))
        if row_id is not None and notify:
            self._tell([row.queue])
        return row_id

    async def insert_many(
        self, session: SessionOrConnection | None, rows: Iterable[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows."""
        del session
        rows = list(rows)
        check_batch(rows)
        ids = [self.add(row) for row in rows]
        if notify:
            self._tell(row.queue for row in rows)
        return ids

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Open nothing: what is inserted is there at once."""
        yield

    async def look(self) -> None:
        """Return: the rows are here."""

    async def cancel_timer(self, session: SessionOrConnection | None, *, queue: str, timer_id: str) -> bool:
        """Delete a timer that is not in flight."""
        del session
        check_name("queue", queue)
        check_name("timer_id", timer_id)
        waiting = self._timer(queue, timer_id)
        if waiting is None or waiting.lease_expires_epoch > self.clock():
            return False
        del self.rows[waiting.id]
        return True

    async def read(
        self, session: SessionOrConnection | None, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows without leasing them."""
        del session
        check_count("limit", limit)
        if queue is not None:
            check_name("queue", queue)
        wanted = (row for _, row in sorted(self.rows.items()) if queue is None or row.queue == queue)
        return [replace(row) for row in islice(wanted, limit)]

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreConnection]:
        """Open a lane; there may be any number."""
        yield MemoryConnection(self)

    def after_commit(self, session: AnySession, callback: Callable[[], None], *, key: Hashable) -> bool:
        """Arrange nothing: there are no transactions here, and whoever listens is told at once."""
        del session, callback, key
        return False

    async def notify(self, queues: Iterable[str]) -> None:
        """Tell everybody who listens."""
        self._tell(queues)

    @asynccontextmanager
    async def listen(self, on_queue: Callable[[str], None]) -> AsyncIterator[Listening]:
        """Hear of rows as they come."""

        def hear(queue: str) -> None:  # of its own identity, should one function listen twice
            on_queue(queue)

        self._listeners.append(hear)
        try:
            yield _MemoryListening()
        finally:
            self._listeners.remove(hear)

    def _tell(self, queues: Iterable[str]) -> None:
        for queue in dict.fromkeys(queues):
            for hear in tuple(self._listeners):
                hear(queue)

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Refuse: there is no schema here that could be wrong."""
        del check_autovacuum
        raise NotImplementedError("The memory store has no schema: validate against a real Postgres.")

    def bury(self, row: OutboxRow, outcome: Dead) -> None:
        """Move a row to the dead ones, as the dead-letter table would keep it."""
        del self.rows[row.id]
        if not self._keep_dead:
            return
        if outcome.attempts_count is not None:
            row.attempts_count = outcome.attempts_count
        if outcome.first_attempt_at is not None:
            row.first_attempt_epoch = outcome.first_attempt_at.timestamp()
        if outcome.last_attempt_at is not None:
            row.last_attempt_epoch = outcome.last_attempt_at.timestamp()
        text = clean_exception_text(outcome.last_exception)
        self.dead.append(DeadRow(row.id, row, to_datetime(self.clock()), outcome.reason, text))

    def _timer(self, queue: str, timer_id: str) -> OutboxRow | None:
        return next((r for r in self.rows.values() if (r.queue, r.timer_id) == (queue, timer_id)), None)

    def add_unless_waiting(self, row: NewRow) -> tuple[int | None, OutboxRow | None]:
        """Put a row in and return its id, or the row that has its timer already."""
        waiting = None if row.timer_id is None else self._timer(row.queue, row.timer_id)
        if waiting is None:
            return self.add(row), None
        next(self._ids)  # Postgres has drawn an id by the time it meets the conflict
        return None, waiting

    def add(self, row: NewRow) -> int:
        """Put a row in, and return its id."""
        row_id, now = next(self._ids), self.clock()
        self.rows[row_id] = OutboxRow(
            id=row_id,
            queue=row.queue,
            entity_key=row.key,
            payload=row.payload,
            headers_json=row.headers_json,
            timer_id=row.timer_id,
            created_epoch=now,
            next_attempt_epoch=_due(row, now),
            acquired_epoch=None,
            acquired_token=None,
            lease_expires_epoch=_NO_LEASE,
            attempts_count=0,
            deliveries_count=0,
            first_attempt_epoch=None,
            last_attempt_epoch=None,
        )
        return row_id


class _MemoryListening(Listening):
    """Hears as long as the store is there."""

    async def wait_lost(self) -> None:
        """Wait for what cannot happen."""
        await asyncio.Event().wait()

    async def test(self) -> None:
        """Return: memory is heard."""

    def can_test(self) -> bool:
        """Tell that it can."""
        return True


class MemoryConnection(StoreConnection):
    """One lane to a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def claim(self, cursor: ClaimCursor, *, limit: int, lease_seconds: float) -> Claim:
        """Lease up to `limit` due rows."""
        check_count("limit", limit)
        began, now = time.monotonic(), self._store.clock()
        plan = cursor.plan(limit, began)
        ready: list[OutboxRow] = []
        for queue, quota in zip(plan.queues, plan.quotas, strict=True):
            free = (row for row in self._due(queue, now) if row.acquired_token is None)
            ready.extend(islice(free, min(quota, limit - len(ready))))
        rows = self._lease(ready, lease_seconds, began, now)
        rows.sort(key=attrgetter("position"))
        more = cursor.record(plan, rows, began=began, ended=time.monotonic())
        return Claim(rows, began + lease_seconds, more)

    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out."""
        began, now = time.monotonic(), self._store.clock()
        expired = [
            row
            for queue, end in cursor.reach.items()
            for row in self._due(queue, now)
            if row.acquired_token is not None and row.lease_expires_epoch <= now and row.position <= end
        ]
        expired.sort(key=attrgetter("lease_expires_epoch", "id"))
        rows = self._lease(expired[:1], lease_seconds, began, now)
        for row in rows:
            row.suspect = True
        return Claim(rows, began + lease_seconds, more=bool(rows))

    def _due(self, queue: str, now: float) -> list[OutboxRow]:
        due = (r for r in self._store.rows.values() if r.queue == queue and r.entity_key is None)
        return sorted((row for row in due if row.next_attempt_epoch <= now), key=attrgetter("position"))

    def lease(self, row: OutboxRow, lease_seconds: float) -> OutboxRow:
        """Lease one row of the store, whether it is due or not."""
        [leased] = self._lease([row], lease_seconds, time.monotonic(), self._store.clock())
        return leased

    def _lease(self, rows: list[OutboxRow], lease_seconds: float, began: float, now: float) -> list[OutboxRow]:
        seconds, token = check_number("lease_seconds", lease_seconds), uuid4()
        for row in rows:
            row.acquired_token, row.acquired_epoch, row.lease_expires_epoch = token, now, now + seconds
            row.deliveries_count += 1
        # Copies: what a handler does to its row does not reach the store.
        return [replace(row, claimed_at=began) for row in rows]

    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Lengthen leases."""
        seconds = check_number("lease_seconds", lease_seconds)
        held = {lease: row for lease in leases if (row := self._held(lease)) is not None}
        for row in held.values():
            row.lease_expires_epoch = self._store.clock() + seconds
        return frozenset(held)

    async def release(self, rows: Iterable[OutboxRow]) -> frozenset[Lease]:
        """Give back rows that were not started."""
        released = set()
        for given in rows:
            row = self._held(given.lease)
            if row is None or given.lease in released:
                continue
            released.add(given.lease)
            row.deliveries_count -= 1
            row.acquired_epoch = None
            row.acquired_token = uuid4() if given.suspect else None
            row.lease_expires_epoch = self._store.clock() if given.suspect else _NO_LEASE
        return frozenset(released)

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes."""
        held, lost = set(), set()
        for settlement in sorted(settlements, key=attrgetter("lease")):
            lease, row = settlement.lease, self._held(settlement.lease)
            if row is not None:
                self._apply(row, settlement.outcome)
                held.add(lease)
            elif lease not in held:  # the first verdict on a lease stands
                lost.add(lease)
        return Settled(frozenset(held), frozenset(lost))

    def _apply(self, row: OutboxRow, outcome: Outcome) -> None:
        now = self._store.clock()
        match outcome:
            case Ack(outputs):
                del self._store.rows[row.id]
                for output in outputs:
                    self._store.add_unless_waiting(output)
            case Dead():
                self._store.bury(row, outcome)
            case Retry(_, attempts_count, first_attempt_at, last_attempt_at):
                row.acquired_token, row.acquired_epoch, row.lease_expires_epoch = None, None, _NO_LEASE
                row.next_attempt_epoch = now + outcome.bounded_delay
                row.attempts_count = attempts_count
                if first_attempt_at is not None:
                    row.first_attempt_epoch = first_attempt_at.timestamp()
                elif row.first_attempt_epoch is None:
                    row.first_attempt_epoch = now
                row.last_attempt_epoch = now if last_attempt_at is None else last_attempt_at.timestamp()

    def _held(self, lease: Lease) -> OutboxRow | None:
        row = self._store.rows.get(lease.row_id)
        return row if row is not None and row.acquired_token == lease.token else None

    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Tell in how many seconds the next free row is due."""
        now = self._store.clock()
        free = (
            max(0.0, row.next_attempt_epoch - now)
            for row in self._store.rows.values()
            if row.queue in cursor.queues and row.entity_key is None and row.acquired_token is None
        )
        return min(free, default=None)

    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows."""
        queues = {row.queue for row in self._store.rows.values()} | {dead.row.queue for dead in self._store.dead}
        return [self._queue_stats(queue) for queue in sorted(queues)]

    def _queue_stats(self, queue: str) -> QueueStats:
        now = self._store.clock()
        rows = [row for row in self._store.rows.values() if row.queue == queue]
        ready = [r.next_attempt_epoch for r in rows if r.acquired_token is None and r.next_attempt_epoch <= now]
        return QueueStats(
            queue=queue,
            ready=len(ready),
            scheduled=sum(row.acquired_token is None and row.next_attempt_epoch > now for row in rows),
            in_flight=sum(row.acquired_token is not None and row.lease_expires_epoch > now for row in rows),
            expired=sum(row.acquired_token is not None and row.lease_expires_epoch <= now for row in rows),
            dead=sum(dead.row.queue == queue for dead in self._store.dead),
            oldest_ready_age=now - min(ready) if ready else None,
            oldest_age=now - min(row.created_epoch for row in rows) if rows else None,
        )

    async def ping(self) -> None:
        """Return: memory answers."""


def _due(row: NewRow, now: float) -> float:
    return row.due_epoch if row.due_epoch is not None else now + (row.delay_seconds or 0.0)
