"""The store on Postgres."""

from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from faststream_outbox.storage.checks import check_count, check_name
from faststream_outbox.storage.commits import AnySession, after_commit
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
from faststream_outbox.storage.handler_transaction import USED_ONCE, SharedTransaction
from faststream_outbox.storage.ordering.actions import KeyAction, ParkKey, ReleaseKey, RetryKey, SkipKey
from faststream_outbox.storage.ordering.runs import settlement_of_acks
from faststream_outbox.storage.ordering.states import KeyState, KeyStateName, wanted_states
from faststream_outbox.storage.postgres.drivers import (
    BorrowedExecutor,
    Executor,
    Records,
    check_engine,
    open_executor,
    run_on,
)
from faststream_outbox.storage.postgres.lane import PostgresConnection, deletion, leases_of
from faststream_outbox.storage.postgres.notifications import Notifications
from faststream_outbox.storage.postgres.runs import columns_of_runs
from faststream_outbox.storage.postgres.shards import ShardStatements
from faststream_outbox.storage.postgres.statements.insert import InsertStatements
from faststream_outbox.storage.postgres.statements.keys import KeyStatements
from faststream_outbox.storage.postgres.statements.rows import NOTIFY, SET_LOCAL, Statement, Statements
from faststream_outbox.storage.postgres.statements.runs import RunStatements
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow, are_alike
from faststream_outbox.storage.schema.tables import notify_channel

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PostgresStore(Store):
    """The rows of one outbox table, and of its dead-letter table where there is one.

    Example:
        store = PostgresStore(engine, outbox_table)
        async with session_factory() as session, session.begin():
            await store.insert(session, NewRow("orders", b"1"))

    """

    def __init__(
        self,
        engine: AsyncEngine | None,
        outbox_table: Table,
        *,
        dlq_table: Table | None = None,
        shards_table: Table | None = None,
    ) -> None:
        if engine is not None:
            check_engine(engine)
        self.engine = engine
        self.outbox_table = outbox_table
        self.dlq_table = dlq_table
        self.shards_table = shards_table
        self._inserts = InsertStatements(outbox_table)
        self._statements = Statements(outbox_table, dlq_table)
        self._runs = RunStatements(outbox_table, dlq_table, self._statements)
        self._keys = KeyStatements(outbox_table, dlq_table)
        self._shards = None if shards_table is None else ShardStatements(shards_table)
        self._notifications = Notifications(notify_channel(outbox_table.name, outbox_table.schema))

    @property
    def keeps_dead(self) -> bool:
        """Whether there is a dead-letter table."""
        return self.dlq_table is not None

    @property
    def keeps_shards(self) -> bool:
        """Whether there is a table of shards."""
        return self.shards_table is not None

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
        statements, keyed = self._inserts, row.key is not None
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
        statement, values = self._insertion(rows)
        [[ids, *_]] = self._insert(session, statement, values, notify=notify)
        # Ids are drawn in the order of the rows; RETURNING promises no order, so the numbers themselves tell it.
        return sorted(ids or ())

    def _insertion(self, rows: Sequence[NewRow]) -> tuple[Statement, Iterable[Any]]:
        """Choose the statement that inserts these rows, with what it takes."""
        if are_alike(rows):
            one, payloads = rows[0], [row.payload for row in rows]
            values = (one.queue, payloads, one.headers_json, one.delay_seconds, one.due_epoch)
            return self._inserts.insert_alike, values
        columns = zip(
            *((r.queue, r.key, r.payload, r.headers_json, r.delay_seconds, r.due_epoch) for r in rows), strict=True
        )
        return self._inserts.insert_many, map(list, columns)

    def _insert(
        self, session: Session | Connection, statement: Statement, values: Iterable[Any], *, notify: bool
    ) -> Records:
        if notify:
            return self._execute(session, self._inserts.notifying[statement], *values, self._notifications.channel)
        return self._execute(session, statement, *values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction of our own on a connection from the engine's pool."""
        if self.engine is None:
            raise RuntimeError("Without an engine one can only publish in a transaction of one's own: give a session.")
        async with self.engine.begin() as connection:
            yield connection

    def share_transaction(self, leases: Sequence[Lease]) -> SharedTransaction:
        """Begin a transaction; it takes a connection from the engine's pool with its first statement."""
        if self.engine is None:
            raise RuntimeError("Without an engine there is no transaction to share: OutboxBroker(engine, …).")
        session = AsyncSession(self.engine, expire_on_commit=False, **USED_ONCE)
        return SharedTransaction(session, self._delete_in, lambda connection: self._lock_on(connection, leases))

    def _lock_on(self, connection: Connection, leases: Sequence[Lease]) -> None:
        ids, tokens = zip(*sorted(leases), strict=True)
        run_on(connection, self._statements.lock, list(ids), list(tokens))

    async def _delete_in(
        self, session: AsyncSession, leases: Sequence[Lease], outputs: Sequence[NewRow], head: Lease | None
    ) -> bool:
        if head is not None:
            run = settlement_of_acks(head, leases, outputs)
            records = await _run(session, self._execute_last, self._runs.settle, *columns_of_runs([run], self._runs))
            return bool(records)
        statement, columns = deletion(self._statements, leases, outputs)
        return leases_of(await _run(session, self._execute_last, statement, *columns)) == frozenset(leases)

    def _execute_last(self, session: Session, statement: Statement, *args: Any) -> Records:
        """Run the last statement of a transaction of somebody else's, planned as on our own connections.

        Made while the table was small, its plan would scan all of it, and be kept. What is set ends with the
        transaction, and nothing but a commit follows. It costs a round trip.
        """
        self._execute(session, SET_LOCAL)
        return self._execute(session, statement, *args)

    async def look(self) -> list[tuple[str, Exception]]:
        """Tell which tables, or columns of theirs, are not there."""
        failures: list[tuple[str, Exception]] = []
        looks = dict(self._statements.look)
        if self._shards is not None:
            looks[self._shards.name] = self._shards.look
        for table, statement in looks.items():
            try:
                async with self.transaction() as connection:
                    await connection.run_sync(run_on, statement)
            except Exception as error:  # noqa: BLE001 - it is what was asked for
                failures.append((table, error))
        return failures

    async def cancel_timer(self, session: SessionOrConnection | None, *, queue: str, timer_id: str) -> bool:
        """Delete a timer that is not in flight, in the caller's transaction."""
        check_name("queue", queue)
        check_name("timer_id", timer_id)
        return bool(await _run(session, self._execute, self._inserts.cancel_timer, queue, timer_id))

    async def read(
        self, session: SessionOrConnection | None, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows without leasing them, in the caller's transaction."""
        check_count("limit", limit)
        if queue is not None:
            check_name("queue", queue)
        records = await _run(session, self._execute, self._statements.read, queue, limit)
        return [OutboxRow(*record) for record in records]

    async def read_keys(
        self,
        session: SessionOrConnection | None,
        *,
        queue: str | None = None,
        state: KeyStateName | None = None,
        limit: int = 1000,
    ) -> list[KeyState]:
        """Describe keys that are blocked, in the caller's transaction."""
        check_count("limit", limit)
        if queue is not None:
            check_name("queue", queue)
        asked = (queue, list(wanted_states(state)), limit)
        records = await _run(session, self._execute, self._keys.read, *asked)
        return [KeyState.of(OutboxRow(*head), waiting=waiting, now=now) for now, waiting, *head in records]

    async def act_on_key(
        self, session: SessionOrConnection | None, action: KeyAction, *, queue: str, key: str, notify: bool = False
    ) -> int | None:
        """Do something with the head of a key, in the caller's transaction."""
        check_name("queue", queue)
        check_name("key", key)
        match action:
            case RetryKey():
                records = await _run(session, self._execute, self._keys.retry, queue, key)
            case ReleaseKey():
                records = await _run(session, self._execute, self._keys.release, queue, key)
            case ParkKey(reason):
                records = await _run(session, self._execute, self._keys.park, queue, key, reason)
            case SkipKey(reason):
                records = await _run(session, self._execute, self._keys.skip, queue, key, reason)
        if records and notify:
            await _run(session, self._execute, NOTIFY, self._notifications.channel, [queue])
        return int(records[0][0]) if records else None

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
            yield self.lane(executor)

    def lane(self, executor: Executor) -> PostgresConnection:
        """Make a lane of whatever runs statements."""
        return PostgresConnection(executor, self._statements, self._runs, self._shards)

    def borrow(self, connection: AsyncConnection) -> StoreConnection:
        """Use a connection of the caller's: inside its open transaction, or one transaction per operation."""
        return self.lane(BorrowedExecutor(connection))

    def after_commit(
        self, session: AnySession, callback: Callable[[], None], *, key: Hashable
    ) -> Callable[[], None] | None:
        """Arrange for one call per key after the session's commit."""
        return None if self.engine is None else after_commit(session, callback, key=key, table=self.outbox_table)

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
        from faststream_outbox.storage.schema.validation import validate_schema  # noqa: PLC0415 - Alembic is optional

        if self.engine is None:
            raise RuntimeError("Without an engine there is no database to ask: give one to validate the schema.")
        tables = (self.outbox_table, self.dlq_table, self.shards_table)
        await validate_schema(self.engine, *tables, check_autovacuum=check_autovacuum)


async def _run(
    session: Any,
    function: Callable[Concatenate[Any, _P], _T],
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> _T:
    check_session(session)
    if isinstance(session, async_scoped_session):
        session = session()
    result: _T = await session.run_sync(function, *args, **kwargs)
    return result
