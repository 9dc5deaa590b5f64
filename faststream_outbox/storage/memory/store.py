"""The store in memory, for users' tests: the same contract, without a database and without transactions."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar
from unittest.mock import NonCallableMock
from uuid import uuid4

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from faststream_outbox.storage.commits import AnySession
from faststream_outbox.storage.contract import Store, StoreLane, UnreadableTable
from faststream_outbox.storage.handler_transaction import GivenTransaction
from faststream_outbox.storage.listening import Listening
from faststream_outbox.storage.memory.acts import MemoryActs
from faststream_outbox.storage.memory.admin import MemoryAdmin
from faststream_outbox.storage.memory.lane import MemoryLane
from faststream_outbox.storage.memory.table import MemoryTable, due_of, unlease
from faststream_outbox.storage.nodes import Look, Node
from faststream_outbox.storage.ordering.states import (
    KeyAction,
    ParkKey,
    ReleaseKey,
    RetryKey,
    SkipKey,
    state_of,
)
from faststream_outbox.storage.outcomes import HANDLED, Ack, Dead, Settlement
from faststream_outbox.storage.parking import (
    BY_OPERATOR,
    Cause,
    cause_in,
    skipped_text,
    with_cause,
    with_failure,
    without_cause,
)
from faststream_outbox.storage.publishing import TimerConflict, check_session
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow

_P = ParamSpec("_P")
_T = TypeVar("_T")


class MemoryStore(MemoryTable, Store):
    """A store in memory. Sessions are accepted and ignored: inserted rows are visible at once, and nothing rolls back.

    `clock` returns epoch seconds in the place of the database's clock; a test moves it instead of waiting.
    """

    keeps_shards = True
    has_transactions = False

    def __init__(self, *, keep_dead: bool = True, clock: Callable[[], float] = time.time) -> None:
        MemoryTable.__init__(self, keep_dead=keep_dead, clock=clock)
        Store.__init__(self)
        self.admin = MemoryAdmin(self, self._send)
        self.acts = MemoryActs(self, self._send)
        # The session that handlers get as `OutboxSession`; a test gives it, because there is no database to open one.
        self.handler_session: AsyncSession | None = None
        self._listeners: list[Callable[[str], None]] = []

    def _insert(self, session: object, row: NewRow, timer_conflict: TimerConflict, *, notify: bool) -> int | None:
        del session
        row_id, waiting = self.add_unless_waiting(row)
        if waiting is not None and timer_conflict == "extend" and waiting.acquired_token is None:
            waiting.next_attempt_epoch = max(waiting.next_attempt_epoch, due_of(row, self.clock()))
        if row_id is not None and notify:
            self._send([row.queue])
        return row_id

    def feed(self, row: NewRow) -> int | None:
        """Insert a row as another program would, and notify; return its id, or None if its timer waits already."""
        return self._insert(None, row, "ignore", notify=True)

    def _insert_many(self, session: object, rows: Sequence[NewRow], *, notify: bool) -> list[int]:
        del session
        ids = [self.add(row) for row in rows]
        if notify:
            self._send(row.queue for row in rows)
        return ids

    def _insert_collected(
        self, session: object, rows: Sequence[NewRow], conflicts: Sequence[TimerConflict], *, notify: bool
    ) -> list[int | None]:
        return [self._insert(session, *each, notify=notify) for each in zip(rows, conflicts, strict=True)]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Open nothing: inserted rows are visible at once."""
        yield

    def share_transaction(self, leases: Sequence[Lease]) -> GivenTransaction:
        """Return a transaction in the session of the test; raise if it gave none."""
        del leases
        if self.handler_session is None:
            raise NotImplementedError(
                "This handler takes an OutboxSession, a session of a real database, and a test in memory has none. To "
                "run it, give TestOutboxBroker a session: handler_session=…, or a database: with_real=True, engine=…. "
                'To keep its rows without running it, name its queue: capture=["…"].'
            )
        return GivenTransaction(self.handler_session, self._delete_in)

    async def _delete_in(
        self, session: AsyncSession, leases: Sequence[Lease], outputs: Sequence[NewRow], head: Lease | None
    ) -> bool:
        del session
        # Either all of them or none, as by one statement: under the lease of the head, or as a group.
        ack = Ack(tuple(outputs))
        if head is None:
            settlements = [Settlement(lease, HANDLED if n else ack, group=1) for n, lease in enumerate(leases)]
        else:
            followers = [(lease.row_id, HANDLED) for lease in leases if lease != head]
            settlements = [Settlement(head, ack, followers=followers)]
        return not (await MemoryLane(self).settle(settlements)).lost

    async def look(self) -> list[UnreadableTable]:
        """Return no errors: there are no tables to miss."""
        return []

    def _cancel_timer(self, session: object, queue: str, timer_id: str) -> bool:
        del session
        waiting = self.timer(queue, timer_id)
        if waiting is None or waiting.lease_expires_epoch > self.clock():
            return False
        del self.rows[waiting.id]
        return True

    def _read(self, session: object, queue: str | None, limit: int) -> list[OutboxRow]:
        del session
        wanted = (row for _, row in sorted(self.rows.items()) if queue is None or row.queue == queue)
        return [replace(row) for row in islice(wanted, limit)]

    def _act_on_key(
        self, session: object, action: KeyAction, queue: str, key: str, expected: int | None, *, notify: bool
    ) -> int | None:
        del session
        heads = (rows[0] for rows in self.rows_by_key())
        head = next((head for head in heads if (head.queue, head.entity_key) == (queue, key)), None)
        now = self.clock()
        if head is None or head.id != (expected or head.id) or state_of(head, now) == "in_flight":
            return None
        parked = head.next_attempt_epoch == math.inf
        match action:
            case RetryKey() | ReleaseKey() | SkipKey() if cause_in(head.headers_json).holds:
                del self.rows[head.id]
            case RetryKey():
                _retry(head, now, parked=parked)
            case ReleaseKey() if parked:
                _release(head, now)
            case ParkKey(reason) if not parked:
                failure = cause_in(head.headers_json).exception
                cause = Cause(BY_OPERATOR, reason, now, head.next_attempt_epoch, failure=failure)
                head.headers_json = with_cause(head.headers_json, cause)
                unlease(head)
                head.next_attempt_epoch = math.inf
            case SkipKey(reason):
                self.bury(head, Dead("rejected", skipped_text(reason, cause_in(head.headers_json))))
            case _:
                return None
        if notify:
            self._send([queue])
        return head.id

    async def run(
        self, session: Any, function: Callable[Concatenate[Any, _P], _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Check the session and call the function with its synchronous one, in the caller's transaction."""
        # None and mocks of sessions are accepted too.
        if session is not None and not isinstance(session, Session | Connection | NonCallableMock):
            check_session(session)
        return function(session, *args, **kwargs)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        """Open a lane; there may be any number."""
        yield MemoryLane(self)

    def after_commit(self, session: AnySession, callback: Callable[[], None], *, key: Hashable) -> None:
        """Arrange nothing: there are no transactions, and listeners are notified at once."""
        del session, callback, key

    async def notify(self, queues: Iterable[str]) -> None:
        """Notify all listeners."""
        self._send(queues)

    @asynccontextmanager
    async def listen(self, on_queue: Callable[[str], None]) -> AsyncIterator[Listening]:
        """Call `on_queue` for each notification."""

        def receive(queue: str) -> None:  # a new object each time, because one function may listen twice
            on_queue(queue)

        self._listeners.append(receive)
        try:
            yield _MemoryListening(self)
        finally:
            self._listeners.remove(receive)

    def _send(self, queues: Iterable[str]) -> None:
        for queue in dict.fromkeys(queues):
            for receive in tuple(self._listeners):
                receive(queue)

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Raise: there is no schema to validate."""
        del check_autovacuum
        raise NotImplementedError("The memory store has no schema: validate against a real Postgres.")


class _MemoryListening(Listening):
    """Receives as long as the store exists."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def notify(self, queues: Iterable[str]) -> None:
        await self._store.notify(queues)

    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        return self._store.unserved(known)

    async def look(self, node: Node) -> Look | None:
        del node
        return None  # no other process can see these rows

    async def wait_lost(self) -> None:
        """Wait without end: the connection cannot be lost."""
        await asyncio.Event().wait()

    async def test(self) -> None:
        """Do nothing: notifications always arrive."""

    def can_test(self) -> bool:
        return True


def _retry(head: OutboxRow, now: float, *, parked: bool) -> None:
    _disown(head)
    head.next_attempt_epoch = min(head.next_attempt_epoch, now)
    head.headers_json = without_cause(head.headers_json)
    if parked:
        head.attempts_count = head.deliveries_count = 0
        head.first_attempt_epoch = head.last_attempt_epoch = None


def _release(head: OutboxRow, now: float) -> None:
    _disown(head)
    cause = cause_in(head.headers_json)
    head.next_attempt_epoch = now if cause.due is None else cause.due
    head.headers_json = (
        with_failure(head.headers_json, cause.failure) if cause.failure else without_cause(head.headers_json)
    )
    head.deliveries_count = 0


def _disown(head: OutboxRow) -> None:
    """Give a suspect another token, so that the process that had it cannot settle it."""
    if head.acquired_token is not None:
        head.acquired_token = uuid4()
