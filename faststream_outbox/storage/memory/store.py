"""The store in memory, for the tests of users: the same contract, without a database and without transactions."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count, islice
from typing import Any, Final, NoReturn
from unittest.mock import NonCallableMock

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from faststream_outbox.storage.checks import check_count, check_name
from faststream_outbox.storage.commits import AnySession
from faststream_outbox.storage.contract import (
    Listening,
    SessionOrConnection,
    Store,
    StoreConnection,
    TimerConflict,
    check_batch,
    check_row,
    check_session,
    check_timer_conflict,
)
from faststream_outbox.storage.memory.keys import MemoryKeys
from faststream_outbox.storage.memory.lane import MemoryConnection
from faststream_outbox.storage.memory.shards import MemoryShards
from faststream_outbox.storage.ordering.actions import KeyAction
from faststream_outbox.storage.ordering.states import KeyState, KeyStateName, wanted_states
from faststream_outbox.storage.outcomes import (
    Dead,
    FailureReason,
    clean_exception_text,
)
from faststream_outbox.storage.parking import Cause, with_cause, without_cause
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
        self.shards = MemoryShards(self)
        self._keep_dead = keep_dead
        self._ids = count(1)
        self._listeners: list[Callable[[str], None]] = []
        self._keys = MemoryKeys(self)

    @property
    def keeps_dead(self) -> bool:
        """Whether `dead` is filled."""
        return self._keep_dead

    @property
    def keeps_shards(self) -> bool:
        """It does."""
        return True

    async def insert(
        self,
        session: SessionOrConnection | None,
        row: NewRow,
        *,
        timer_conflict: TimerConflict = "ignore",
        notify: bool = False,
    ) -> int | None:
        """Insert one row."""
        _check_session(session)
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
        _check_session(session)
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
        _check_session(session)
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

    def share_transaction(self, leases: Sequence[Lease]) -> NoReturn:
        """Refuse: rows in memory and a database's rows cannot be committed together."""
        del leases
        raise NotImplementedError(
            "OutboxSession is a transaction of a real database, in which the handler's writes and the deletion of its "
            "message are one. In memory there is none, and nothing would be rolled back: test this handler with "
            "TestOutboxBroker(broker, with_real=True, engine=…), or call it yourself with a session of yours."
        )

    async def look(self) -> list[tuple[str, Exception]]:
        """Find nothing amiss: the rows are here."""
        return []

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

    async def read_keys(
        self,
        session: SessionOrConnection | None,
        *,
        queue: str | None = None,
        state: KeyStateName | None = None,
        limit: int = 1000,
    ) -> list[KeyState]:
        """Describe keys that are blocked."""
        del session
        check_count("limit", limit)
        if queue is not None:
            check_name("queue", queue)
        return self._keys.read(queue=queue, states=wanted_states(state), limit=limit)

    async def act_on_key(
        self, session: SessionOrConnection | None, action: KeyAction, *, queue: str, key: str, notify: bool = False
    ) -> int | None:
        """Do something with the head of a key."""
        _check_session(session)
        check_name("queue", queue)
        check_name("key", key)
        head = self._keys.act(queue, key, action)
        if head is not None and notify:
            self._tell([queue])
        return head

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreConnection]:
        """Open a lane; there may be any number."""
        yield MemoryConnection(self)

    def after_commit(self, session: AnySession, callback: Callable[[], None], *, key: Hashable) -> None:
        """Arrange nothing: there are no transactions here, and whoever listens is told at once."""
        del session, callback, key

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
            yield _MemoryListening(self)
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
        _write_failure(row, outcome)
        row.headers_json = without_cause(row.headers_json)
        text = clean_exception_text(outcome.last_exception)
        self.dead.append(DeadRow(row.id, row, to_datetime(self.clock()), outcome.reason, text))

    def park(self, row: OutboxRow, outcome: Dead) -> None:
        """Keep a row at the head of its key, due never, with what it would have died of."""
        _write_failure(row, outcome)
        row.acquired_token, row.acquired_epoch, row.lease_expires_epoch = None, None, _NO_LEASE
        row.next_attempt_epoch = math.inf
        cause = Cause(outcome.reason, clean_exception_text(outcome.last_exception), self.clock())
        row.headers_json = with_cause(row.headers_json, cause)

    def is_parked(self, row: OutboxRow) -> bool:
        """Tell whether a row waits in a key that is parked."""
        place = (row.queue, row.entity_key)
        return row.entity_key is not None and any(
            (each.queue, each.entity_key) == place and each.next_attempt_epoch == math.inf
            for each in self.rows.values()
        )

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

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def notify(self, queues: Iterable[str]) -> None:
        """Tell everybody who listens."""
        await self._store.notify(queues)

    async def wait_lost(self) -> None:
        """Wait for what cannot happen."""
        await asyncio.Event().wait()

    async def test(self) -> None:
        """Return: memory is heard."""

    def can_test(self) -> bool:
        """Tell that it can."""
        return True


def _check_session(session: object) -> None:
    """Refuse what Postgres would refuse; no session at all, or a mock of one, is what this store is for."""
    if session is not None and not isinstance(session, Session | Connection | NonCallableMock):
        check_session(session)


def _write_failure(row: OutboxRow, outcome: Dead) -> None:
    if outcome.attempts_count is not None:
        row.attempts_count = outcome.attempts_count
    if outcome.first_attempt_at is not None:
        row.first_attempt_epoch = outcome.first_attempt_at.timestamp()
    if outcome.last_attempt_at is not None:
        row.last_attempt_epoch = outcome.last_attempt_at.timestamp()


def _due(row: NewRow, now: float) -> float:
    return row.due_epoch if row.due_epoch is not None else now + (row.delay_seconds or 0.0)
