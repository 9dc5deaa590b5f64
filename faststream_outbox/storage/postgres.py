"""The store on Postgres."""

import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
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
from faststream_outbox.storage.commits import AnySession, after_commit
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.drivers import (
    BorrowedExecutor,
    Executor,
    Records,
    check_engine,
    concerns_rows,
    open_executor,
    run_on,
    sqlstate,
)
from faststream_outbox.storage.notifications import Notifications
from faststream_outbox.storage.outcomes import (
    Ack,
    Dead,
    Retry,
    Settled,
    SettleInterruptedError,
    Settlement,
    clean_exception_text,
)
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow, Position
from faststream_outbox.storage.schema import notify_channel
from faststream_outbox.storage.statements import PING, Statement, Statements

# Errors that concern every row of a statement, and no other statement: a table or column that is missing.
_STATEMENT_ERRORS: Final = ("42",)

# The first instant that Postgres can name, in the year 4714 before Christ.
_CALENDAR_BEGINS: Final = -210_866_803_200.0
_Entry = tuple[Any, ...]  # a lease's id and token, and what its statement takes besides
_P = ParamSpec("_P")
_T = TypeVar("_T")


class PostgresStore(Store):
    """The rows of one outbox table, and of its dead-letter table where there is one.

    Example:
        store = PostgresStore(engine, outbox_table)
        async with session_factory() as session, session.begin():
            await store.insert(session, NewRow("orders", b"1"))

    """

    def __init__(self, engine: AsyncEngine | None, outbox_table: Table, *, dlq_table: Table | None = None) -> None:
        if engine is not None:
            check_engine(engine)
        self.engine = engine
        self.outbox_table = outbox_table
        self.dlq_table = dlq_table
        self._statements = Statements(outbox_table, dlq_table)
        self._notifications = Notifications(notify_channel(outbox_table.name, outbox_table.schema))

    @property
    def keeps_dead(self) -> bool:
        """Whether there is a dead-letter table."""
        return self.dlq_table is not None

    async def insert(
        self,
        session: SessionOrConnection | None,
        row: NewRow,
        *,
        timer_conflict: TimerConflict = "ignore",
        notify: bool = False,
    ) -> int | None:
        """Insert one row, in the caller's transaction."""
        check_row(row)
        check_timer_conflict(timer_conflict)
        return await _run(session, self.insert_sync, row, timer_conflict, notify=notify)

    def insert_sync(
        self,
        session: Session | Connection,
        row: NewRow,
        timer_conflict: TimerConflict = "ignore",
        *,
        notify: bool = False,
    ) -> int | None:
        """Insert one row through a synchronous session or connection."""
        if row.key is not None and isinstance(session, Session):
            session.flush()  # order begins here: what the message tells of is written before its place is drawn
        statements, keyed = self._statements, row.key is not None
        if row.timer_id is None:
            statement = statements.insert_keyed if keyed else statements.insert
        else:
            statement = statements.insert_keyed_timer if keyed else statements.insert_timer
        values = (row.queue, row.key, row.payload, row.headers_json, row.timer_id, row.delay_seconds, row.due_epoch)
        records = self._insert(session, statement, values, notify=notify)
        if records:
            return int(records[0][0])
        if timer_conflict == "extend":
            self._execute(session, statements.extend_timer, row.queue, row.timer_id, row.due_epoch, row.delay_seconds)
        return None

    async def insert_many(
        self, session: SessionOrConnection | None, rows: Iterable[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows in one statement, in the caller's transaction."""
        rows = list(rows)
        check_batch(rows)
        return await _run(session, self.insert_many_sync, rows, notify=notify) if rows else []

    def insert_many_sync(
        self, session: Session | Connection, rows: Sequence[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows in one statement through a synchronous session or connection."""
        if isinstance(session, Session) and any(row.key is not None for row in rows):
            session.flush()
        columns = zip(
            *((r.queue, r.key, r.payload, r.headers_json, r.delay_seconds, r.due_epoch) for r in rows), strict=True
        )
        records = self._insert(session, self._statements.insert_many, map(list, columns), notify=notify)
        # Ids are drawn in the order of the rows; RETURNING promises no order, so the numbers themselves tell it.
        return sorted(record[0] for record in records)

    def _insert(
        self, session: Session | Connection, statement: Statement, values: Iterable[Any], *, notify: bool
    ) -> Records:
        if notify:
            return self._execute(session, self._statements.notifying[statement], *values, self._notifications.channel)
        return self._execute(session, statement, *values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction of our own on a connection from the engine's pool."""
        if self.engine is None:
            raise RuntimeError("Without an engine one can only publish in a transaction of one's own: give a session.")
        async with self.engine.begin() as connection:
            yield connection

    async def look(self) -> None:
        """Raise if the tables, or columns of theirs, are not there."""
        async with self.transaction() as connection:
            for statement in self._statements.look:
                await connection.run_sync(run_on, statement)

    async def cancel_timer(self, session: SessionOrConnection | None, *, queue: str, timer_id: str) -> bool:
        """Delete a timer that is not in flight, in the caller's transaction."""
        check_name("queue", queue)
        check_name("timer_id", timer_id)
        return bool(await _run(session, self._execute, self._statements.cancel_timer, queue, timer_id))

    async def read(
        self, session: SessionOrConnection | None, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows without leasing them, in the caller's transaction."""
        check_count("limit", limit)
        if queue is not None:
            check_name("queue", queue)
        records = await _run(session, self._execute, self._statements.read, queue, limit)
        return [OutboxRow(*record) for record in records]

    def _execute(self, session: Session | Connection, statement: Statement, *args: Any) -> Records:
        if isinstance(session, Session):
            session = session.connection(bind_arguments={"clause": self.outbox_table})
        return run_on(session, statement, *args)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreConnection]:
        """Take a connection from the engine's pool."""
        if self.engine is None:
            raise RuntimeError("Without an engine one can only publish: give one to consume.")
        async with open_executor(self.engine) as executor:
            yield PostgresConnection(executor, self._statements)

    def borrow(self, connection: AsyncConnection) -> StoreConnection:
        """Use a connection of the caller's: inside its open transaction, or one transaction per operation."""
        return PostgresConnection(BorrowedExecutor(connection), self._statements)

    def after_commit(self, session: AnySession, callback: Callable[[], None], *, key: Hashable) -> bool:
        """Arrange for one call per key after the session's commit."""
        return self.engine is not None and after_commit(session, callback, key=key, table=self.outbox_table)

    async def notify(self, queues: Iterable[str]) -> None:
        """Tell everybody who listens, on a connection that the pool lends for it."""
        if self.engine is None:
            raise RuntimeError("Without an engine nobody can be told: give one, or insert with notify=True.")
        await self._notifications.send(self.engine, list(queues))

    def listen(self, on_queue: Callable[[str], None]) -> AbstractAsyncContextManager[Listening]:
        """Open a LISTEN connection, which belongs to no pool."""
        if self.engine is None:
            raise RuntimeError("Without an engine there is nobody to listen to: give one.")
        return self._notifications.listen(self.engine, on_queue)

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Compare the live tables with what the statements need; needs Alembic."""
        from faststream_outbox.storage.validation import validate_schema  # noqa: PLC0415 - Alembic is optional

        if self.engine is None:
            raise RuntimeError("Without an engine there is no database to ask: give one to validate the schema.")
        await validate_schema(self.engine, self.outbox_table, self.dlq_table, check_autovacuum=check_autovacuum)


class PostgresConnection(StoreConnection):
    """One lane to the outbox table."""

    def __init__(self, executor: Executor, statements: Statements) -> None:
        self._executor = executor
        self._statements = statements

    async def claim(self, cursor: ClaimCursor, *, limit: int, lease_seconds: float) -> Claim:
        """Lease up to `limit` due rows."""
        check_count("limit", limit)
        began = time.monotonic()
        plan = cursor.plan(limit, began)
        asked = (list(plan.queues), list(plan.quotas), *_starts(plan.starts), limit)
        try:
            rows = await self._lease(self._statements.claim, lease_seconds, began, *asked)
        except BaseException:
            cursor.abandon(plan, began=began, ended=time.monotonic())
            raise
        rows.sort(key=attrgetter("position"))
        more = cursor.record(plan, rows, began=began, ended=time.monotonic())
        return Claim(rows, began + lease_seconds, more)

    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out."""
        began = time.monotonic()
        queues, ends = list(cursor.reach), list(cursor.reach.values())
        rows = await self._lease(self._statements.claim_suspect, lease_seconds, began, queues, *_ends(ends))
        for row in rows:
            row.suspect = True
        return Claim(rows, began + lease_seconds, more=bool(rows))

    async def _lease(self, statement: Statement, lease_seconds: float, began: float, *args: Any) -> list[OutboxRow]:
        seconds = check_number("lease_seconds", lease_seconds)
        rows = [OutboxRow(*record) for record in await self._executor.fetch(statement, uuid4(), seconds, *args)]
        for row in rows:
            row.claimed_at = began
        return rows

    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Lengthen leases."""
        held = sorted(set(leases))
        if not held:
            return frozenset()
        seconds = check_number("lease_seconds", lease_seconds)
        return _leases(await self._executor.fetch(self._statements.renew, *_columns(held), seconds))

    async def release(self, rows: Iterable[OutboxRow]) -> frozenset[Lease]:
        """Give back rows that were not started."""
        given = sorted({(*row.lease, row.suspect) for row in rows})
        if not given:
            return frozenset()
        return _leases(await self._executor.fetch(self._statements.release, *_columns(given)))

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes, one statement per kind."""
        statements = self._statements
        acked, chained, retried, dead = list[_Entry](), list[_Entry](), list[_Entry](), list[_Entry]()
        first_verdicts = {s.lease: s.outcome for s in reversed(list(settlements))}
        for lease, outcome in sorted(first_verdicts.items(), key=itemgetter(0)):
            match outcome:
                case Retry(attempts_count=attempts):
                    retried.append((*lease, outcome.bounded_delay, attempts, *_times(outcome)))
                case Dead(reason, text, attempts) if statements.bury is not None:
                    dead.append((*lease, reason, clean_exception_text(text), attempts, *_times(outcome)))
                case Ack(outputs) if outputs:
                    chained.append((*lease, outputs))
                case Ack() | Dead():
                    acked.append(lease)
        tally = _Tally()
        try:
            await self._settle_or_split(statements.delete, acked, tally)
            await self._settle_or_split(statements.delete_and_insert, chained, tally, _columns_with_outputs)
            await self._settle_or_split(statements.retry, retried, tally)
            await self._settle_or_split(statements.bury or statements.delete, dead, tally)
        except Exception as error:
            raise SettleInterruptedError(tally.settled()) from error
        return tally.settled()

    async def _settle_or_split(
        self,
        statement: Statement,
        entries: Sequence[_Entry],
        tally: "_Tally",
        columns: Callable[[Sequence[_Entry]], Iterable[list[Any]]] | None = None,
    ) -> None:
        if not entries:
            return
        leases = {Lease(*entry[:2]) for entry in entries}
        try:
            held = _leases(await self._executor.fetch(statement, *(columns or _columns)(entries)))
        except Exception as error:
            if sqlstate(error).startswith(_STATEMENT_ERRORS) or (concerns_rows(error) and len(entries) == 1):
                tally.failed.update(dict.fromkeys(leases, error))
            elif concerns_rows(error):
                middle = len(entries) // 2
                await self._settle_or_split(statement, entries[:middle], tally, columns)
                await self._settle_or_split(statement, entries[middle:], tally, columns)
            else:
                raise
        else:
            tally.held |= held
            tally.lost |= leases - held

    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Tell in how many seconds the next free row is due."""
        marks = list(cursor.marks.values())
        [[seconds]] = await self._executor.fetch(self._statements.next_due, list(cursor.marks), *_starts(marks))
        return None if seconds is None else max(0.0, seconds)

    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows."""
        return [QueueStats(*record) for record in await self._executor.fetch(self._statements.stats)]

    async def ping(self) -> None:
        """Ask the server for a sign of life."""
        await self._executor.fetch(PING)


@dataclass(slots=True)
class _Tally:
    held: set[Lease] = field(default_factory=set)
    lost: set[Lease] = field(default_factory=set)
    failed: dict[Lease, Exception] = field(default_factory=dict)

    def settled(self) -> Settled:
        return Settled(frozenset(self.held), frozenset(self.lost), self.failed)


async def _run(
    session: Any,
    function: Callable[Concatenate[Any, _P], _T],
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> _T:
    if isinstance(session, async_scoped_session):
        session = session()
    if not isinstance(session, AsyncSession | AsyncConnection):
        raise TypeError(
            f"session is the AsyncSession or AsyncConnection of your open transaction, not {type(session).__name__}: "
            "the message is written with your own changes, or not at all. Make one with async_sessionmaker(engine)."
        )
    return await session.run_sync(function, *args, **kwargs)


def _starts(positions: Sequence[Position]) -> tuple[list[float], list[int]]:
    # To the next float below, so that rounding on the way never starts a claim after its mark.
    below = (math.nextafter(at, -math.inf) for at, _ in positions)
    return [at if at > _CALENDAR_BEGINS else -math.inf for at in below], [row_id for _, row_id in positions]


def _ends(positions: Sequence[Position]) -> tuple[list[float], list[int]]:
    above = (math.nextafter(at, math.inf) for at, _ in positions)
    return [at if at > _CALENDAR_BEGINS else -math.inf for at in above], [row_id for _, row_id in positions]


def _columns(entries: Sequence[_Entry]) -> Iterable[list[Any]]:
    return map(list, zip(*entries, strict=True))


def _columns_with_outputs(entries: Sequence[_Entry]) -> Iterable[list[Any]]:
    outputs = [
        (row_id, new.queue, new.key, new.payload, new.headers_json, new.timer_id, new.delay_seconds, new.due_epoch)
        for row_id, _, new_rows in entries
        for new in new_rows
    ]
    return [*_columns([entry[:2] for entry in entries]), *_columns(outputs)]


def _leases(records: Records) -> frozenset[Lease]:
    return frozenset(Lease(row_id, token) for row_id, token in records)


def _times(outcome: Retry | Dead) -> tuple[float | None, float | None]:
    return _epoch(outcome.first_attempt_at), _epoch(outcome.last_attempt_at)


def _epoch(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
