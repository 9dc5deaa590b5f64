"""The store on Postgres."""

from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from faststream_outbox.storage.commits import AnySession, after_commit
from faststream_outbox.storage.contract import ServerProcess, Store, StoreLane, TableKind, UnreadableTable
from faststream_outbox.storage.handler_transaction import USED_ONCE, SharedTransaction
from faststream_outbox.storage.listening import Listening
from faststream_outbox.storage.ordering.states import KeyAction, ParkKey, ReleaseKey, RetryKey, SkipKey
from faststream_outbox.storage.outcomes import HANDLED, Ack, Settlement
from faststream_outbox.storage.postgres.acts import PostgresActs
from faststream_outbox.storage.postgres.admin import PostgresAdmin
from faststream_outbox.storage.postgres.drivers import (
    SET_LOCAL,
    BorrowedExecutor,
    Executor,
    Records,
    check_engine,
    open_executor,
    run_on,
    run_on_raw,
    run_raw,
)
from faststream_outbox.storage.postgres.lane import PostgresLane, deletion, leases_of
from faststream_outbox.storage.postgres.node_registry import PostgresNodeRegistry
from faststream_outbox.storage.postgres.notifications import NOTIFY, Notifications
from faststream_outbox.storage.postgres.pausing import PostgresPausing
from faststream_outbox.storage.postgres.runs import settle_parameters
from faststream_outbox.storage.postgres.shards import ShardStatements
from faststream_outbox.storage.postgres.statements import Statements
from faststream_outbox.storage.postgres.statements.control import ControlStatements
from faststream_outbox.storage.postgres.statements.insert import NEW_ROWS, NEW_TIMERS, row_values
from faststream_outbox.storage.postgres.statements.operators import HIDDEN_TABLES, MISSING_RIGHTS
from faststream_outbox.storage.postgres.statements.runs import RunKind
from faststream_outbox.storage.postgres.statements.statement import LEASES, Statement
from faststream_outbox.storage.publishing import SessionOrConnection, TimerConflict, check_row, check_session
from faststream_outbox.storage.rows import AlikeRows, Lease, NewRow, OutboxRow, are_alike, payloads_of
from faststream_outbox.storage.schema.missing_rights import MissingRightsError, needed_rights
from faststream_outbox.storage.schema.row_security import RowSecurityError
from faststream_outbox.storage.schema.tables import notify_channel, quoted_name
from faststream_outbox.storage.sessions.raw import AsyncpgConnection, raw_connection
from faststream_outbox.storage.sessions.unit_of_work import write_before

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PostgresStore(Store):
    """The rows of one outbox table and, if there is one, its dead-letter table.

    Args:
        engine: The engine, yours to dispose of; None for a store that only inserts.
        outbox_table: The table of messages.
        dlq_table: The table of dead letters. Without one, messages that failed for good are deleted.
        shards_table: The table of shard leases, for `HashShards()`.
        control_table: The table of paused queues.
        audit_table: The table of what operators did.
        nodes_table: The table of running processes.

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
        control_table: Table | None = None,
        audit_table: Table | None = None,
        nodes_table: Table | None = None,
    ) -> None:
        if engine is not None:
            check_engine(engine)
        super().__init__()
        self.engine = engine
        self.outbox_table = outbox_table
        self.name = outbox_table.fullname
        self.dlq_table = dlq_table
        self.shards_table = shards_table
        self.control_table = control_table
        self.audit_table = audit_table
        self.nodes_table = nodes_table
        self.keeps_dead = dlq_table is not None
        self.keeps_shards = shards_table is not None
        self._statements = Statements(outbox_table, dlq_table)
        self.admin = PostgresAdmin(self._execute, outbox_table, dlq_table, nodes_table)
        self.acts = PostgresActs(self._execute, outbox_table, dlq_table)
        self._control = None if control_table is None else ControlStatements(control_table)
        self._shards = None if shards_table is None else ShardStatements(shards_table)
        tables = (table for table in (outbox_table, dlq_table, shards_table, control_table) if table is not None)
        self._tables = [quoted_name(table.name, table.schema) for table in tables]
        self._notifications = Notifications(
            notify_channel(outbox_table.name, outbox_table.schema),
            self._statements.operators.unserved,
            self.control,
            self._control,
        )
        if self._control is not None:
            self.pausing = PostgresPausing(self._execute, self._control, self._notifications.channel)
        if nodes_table is not None:
            self.registry = PostgresNodeRegistry(self.transaction, nodes_table)

    async def insert(
        self,
        session: SessionOrConnection | None,
        row: NewRow,
        *,
        timer_conflict: TimerConflict = "ignore",
        notify: bool = False,
    ) -> int | None:
        """Insert one row, as any store does; on a connection of asyncpg, whose calls can be awaited here, directly."""
        raw = raw_connection(session)
        if not isinstance(raw, AsyncpgConnection) or timer_conflict != "ignore":
            return await super().insert(session, row, timer_conflict=timer_conflict, notify=notify)
        check_row(row)
        raw.check_transaction()
        statement = self._statements.insert.for_row(row)
        records = await raw.connection.fetch(statement.text, *statement.bind(row_values(row, notify=notify)))
        return int(records[0][0]) if records else None

    def _insert(self, session: Any, row: NewRow, timer_conflict: TimerConflict, *, notify: bool) -> int | None:
        _check_transaction(session)
        if row.key is not None and isinstance(session, Session):
            self._write_before(session, (row,))
        statement = self._statements.insert.for_row(row)
        records = self._execute(session, statement, **row_values(row, notify=notify))
        if records:
            return int(records[0][0])
        if timer_conflict == "extend":
            self._extend_timer(session, row)
        return None

    def _write_before(self, session: Session, rows: Sequence[NewRow]) -> None:
        """Write what the session has changed, and what it has collected for the keys of these rows, which come next.

        The ids that they draw fix the order of a key.
        """
        session.flush()
        write_before(session, lambda: {(self.name, row.queue, row.key) for row in rows if row.key is not None})

    def _extend_timer(self, session: Any, row: NewRow) -> None:
        timer = {"queue": row.queue, "timer_id": row.timer_id, "delay": row.delay_seconds, "due": row.due_epoch}
        self._execute(session, self._statements.insert.extend_timer, **timer)

    def _insert_many(self, session: Any, rows: Sequence[NewRow], *, notify: bool) -> list[int]:
        _check_transaction(session)
        if (
            isinstance(session, Session)
            and not isinstance(rows, AlikeRows)
            and any(row.key is not None for row in rows)
        ):
            self._write_before(session, rows)
        statements = self._statements.insert
        if are_alike(rows):
            first = rows[0]
            [[ids, *_]] = self._execute(
                session,
                statements.insert_alike,
                queue=first.queue,
                payloads=payloads_of(rows),
                headers=first.headers_json,
                delay=first.delay_seconds,
                due=first.due_epoch,
                notify=notify,
            )
        else:
            new = [(r.queue, r.key, r.payload, r.headers_json, r.delay_seconds, r.due_epoch) for r in rows]
            [[ids, *_]] = self._execute(session, statements.insert_many, **NEW_ROWS.fill(new), notify=notify)
        # Ids are drawn in the order of the rows, but RETURNING promises no order: sorted ids have the rows' order.
        return sorted(ids or ())

    def _insert_collected(
        self, session: Any, rows: Sequence[NewRow], conflicts: Sequence[TimerConflict], *, notify: bool
    ) -> list[int | None]:
        if len(rows) == 1:
            return [self._insert(session, rows[0], conflicts[0], notify=notify)]
        if all(row.timer_id is None for row in rows):
            return [*self._insert_many(session, rows, notify=notify)]
        new = [(r.queue, r.key, r.payload, r.headers_json, r.timer_id, r.delay_seconds, r.due_epoch) for r in rows]
        statement = self._statements.insert.insert_timers
        records = self._execute(session, statement, **NEW_TIMERS.fill(new), notify=notify)
        # As in a batch, sorted ids have the order of the rows; timers are found by their names.
        plain = iter(sorted(record[0] for record in records if record[2] is None))
        timers = {(record[1], record[2]): record[0] for record in records if record[2] is not None}
        ids = [next(plain) if row.timer_id is None else timers.pop((row.queue, row.timer_id), None) for row in rows]
        for row, row_id, conflict in zip(rows, ids, conflicts, strict=True):
            if row_id is None and conflict == "extend":
                self._extend_timer(session, row)
        return ids

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction on a connection from the engine's pool."""
        async with self._require_engine("to publish without a session").begin() as connection:
            yield connection

    def _require_engine(self, purpose: str) -> AsyncEngine:
        if self.engine is None:
            raise RuntimeError(
                f"Without an engine rows can only be published through your own session: give one {purpose}."
            )
        return self.engine

    def share_transaction(self, leases: Sequence[Lease]) -> SharedTransaction:
        """Begin a transaction; it takes a connection from the engine's pool with its first statement."""
        session = AsyncSession(
            self._require_engine("to share a transaction with a handler"), expire_on_commit=False, **USED_ONCE
        )
        lock = self._statements.settle.lock
        return SharedTransaction(session, self._delete_in, lambda on: run_on(on, lock, **LEASES.fill(sorted(leases))))

    async def _delete_in(
        self, session: AsyncSession, leases: Sequence[Lease], outputs: Sequence[NewRow], head: Lease | None
    ) -> bool:
        if any(row.key is not None for row in outputs):
            await self.run(session, self._write_before, outputs)
        if head is not None:
            followers = sorted(lease.row_id for lease in leases if lease != head)
            run = Settlement(head, Ack(tuple(outputs)), followers=[(row_id, HANDLED) for row_id in followers])
            kind = RunKind(outputs=bool(outputs), passes=False)
            parameters = settle_parameters([run], keeps_dead=self.keeps_dead, kind=kind)
            settle = self._statements.runs.settles[kind]
            return bool(await self.run(session, self._execute_last, settle, **parameters))
        statement, columns = deletion(self._statements, leases, outputs)
        return leases_of(await self.run(session, self._execute_last, statement, **columns)) == frozenset(leases)

    def _execute_last(self, session: Session, statement: Statement, /, **values: Any) -> Records:
        """Run the last statement of a handler's transaction, planned as on the store's own connections.

        A plan made while the table was small would scan all of it, and be kept. The settings end with the transaction,
        and only a commit follows. It costs a round trip.
        """
        self._execute(session, SET_LOCAL)
        return self._execute(session, statement, **values)

    async def look(self) -> list[UnreadableTable]:
        """Return the tables that cannot be read, or whose rows are hidden, each with the error."""
        failures: list[UnreadableTable] = []
        kinds: tuple[TableKind, ...] = ("outbox", "dlq")
        looks = [*zip(kinds, self._statements.operators.look.items(), strict=False)]
        if self._shards is not None:
            looks.append(("shards", (self._shards.name, self._shards.look)))
        if self._control is not None:
            looks.append(("control", (self._control.name, self._control.look)))
        for kind, (name, statement) in looks:
            try:
                await self._read_alone(statement)
            except Exception as error:  # noqa: BLE001 - errors are the result
                failures.append(UnreadableTable(kind, name, error))
        if len(failures) < len(looks):
            kind_of = dict(zip(self._tables, (kind for kind, _ in looks), strict=True))
            for arguments in await self._read_alone(HIDDEN_TABLES, tables=self._tables):
                hidden = RowSecurityError(*arguments)
                failures.append(UnreadableTable(kind_of[hidden.table], f"The table {hidden.table}", hidden))
        return failures

    async def missing_rights(self, *, shards: bool) -> list[MissingRightsError]:
        """Return the rights that the role lacks to claim and settle."""
        needed = needed_rights(self.outbox_table, self.dlq_table, self.shards_table if shards else None)
        tables, commands = map(list, zip(*needed, strict=True))
        missing = await self._read_alone(MISSING_RIGHTS, tables=tables, commands=commands)
        return [MissingRightsError(*each) for each in missing]

    async def _read_alone(self, statement: Statement, **values: Any) -> Records:
        async with self.transaction() as connection:
            return await connection.run_sync(run_on, statement, **values)

    def _cancel_timer(self, session: Any, queue: str, timer_id: str) -> bool:
        _check_transaction(session)
        return bool(self._execute(session, self._statements.insert.cancel_timer, queue=queue, timer_id=timer_id))

    def _read(self, session: Any, queue: str | None, limit: int) -> list[OutboxRow]:
        records = self._execute(session, self._statements.operators.read, queue=queue, limit=limit)
        return [OutboxRow(*record) for record in records]

    def _act_on_key(
        self, session: Any, action: KeyAction, queue: str, key: str, head: int | None, *, notify: bool
    ) -> int | None:
        statements = self._statements.operators
        run = partial(self._execute, session, queue=queue, key=key, head=head)
        match action:
            case RetryKey():
                records = run(statements.retry)
            case ReleaseKey():
                records = run(statements.release)
            case ParkKey(reason):
                records = run(statements.park, reason=reason)
            case SkipKey(reason):
                records = run(statements.skip, reason=reason)
        if records and notify:
            self._execute(session, NOTIFY, channel=self._notifications.channel, payloads=[queue])
        return int(records[0][0]) if records else None

    async def run(
        self, session: Any, function: Callable[Concatenate[Any, _P], _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Check the session and call the function with its synchronous one, in the caller's transaction."""
        check_session(session)
        if (raw := raw_connection(session)) is not None:
            return await run_raw(function, raw, *args, **kwargs)
        if isinstance(session, async_scoped_session):
            session = session()
        result: _T = await session.run_sync(function, *args, **kwargs)
        return result

    def _execute(self, session: Any, statement: Statement, /, **values: Any) -> Records:
        if (raw := raw_connection(session)) is not None:
            return run_on_raw(raw, statement, values)
        if isinstance(session, Session):
            session = session.connection(bind_arguments={"clause": self.outbox_table})
        return run_on(session, statement, **values)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        """Take a connection from the engine's pool."""
        async with open_executor(self._require_engine("to consume")) as executor:
            yield self.lane(executor, executor.process)

    def lane(self, executor: Executor, process: ServerProcess | None = None) -> PostgresLane:
        """Return a lane that runs its statements through this executor, in that process of the server."""
        return PostgresLane(
            executor, self._statements, self._shards, nodes=self.nodes, tables=self._tables, process=process
        )

    def borrow(self, connection: AsyncConnection) -> StoreLane:
        """Return a lane on a caller's connection: inside its open transaction, or one transaction per operation."""
        return self.lane(BorrowedExecutor(connection))

    def after_commit(
        self, session: AnySession, callback: Callable[[], None], *, key: Hashable
    ) -> Callable[[], None] | None:
        """Arrange one call per key after the session's commit."""
        return None if self.engine is None else after_commit(session, callback, key=key, table=self.outbox_table)

    async def notify(self, queues: Iterable[str]) -> None:
        """Notify all listeners, on a connection from the pool."""
        await self._notifications.send(self._require_engine("to notify"), list(queues))

    def listen(self, on_queue: Callable[[str], None]) -> AbstractAsyncContextManager[Listening]:
        """Open a LISTEN connection, which belongs to no pool."""
        return self._notifications.listen(self._require_engine("to listen"), on_queue)

    async def read_control(self) -> bool:
        """Read which queues are paused, on a connection from the pool."""
        if self._control is None:
            return False
        [[notes]] = await self._notifications.run(self._require_engine("to read pauses"), self._control.read_notes)
        return self.control.note(notes, looked=False)

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Raise if the live tables lack what the statements need; needs Alembic."""
        from faststream_outbox.storage.schema.validation import validate_schema  # noqa: PLC0415 - Alembic is optional

        engine = self._require_engine("to validate the schema")
        operations = (self.control_table, self.audit_table, self.nodes_table)
        tables = (self.outbox_table, self.dlq_table, self.shards_table, *operations)
        await validate_schema(engine, *tables, check_autovacuum=check_autovacuum)


def _check_transaction(session: Any) -> None:
    if (raw := raw_connection(session)) is not None:
        raw.check_transaction()
