"""An inbox on Postgres: record a message in a transaction that its handler shares, and delete old records."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from faststream_outbox.storage.commits import autocommits
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.handler_transaction import SERIALIZATION_FAILURE, USED_ONCE, GuardedTransaction
from faststream_outbox.storage.postgres.drivers import Records, check_dialect, run_on
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.schema.tables import check_table, make_inbox_table, quoted_name


class InboxStatements:
    """The statements for one inbox table."""

    def __init__(self, table: Table) -> None:
        inbox = quoted_name(table.name, table.schema)
        # While another transaction records the same message, this waits for its end; then either it was seen, or it
        # is recorded here.
        self.record = Statement(
            f"INSERT INTO {inbox} (consumer, message_id) VALUES (:consumer, :message_id) "
            "ON CONFLICT (consumer, message_id) DO NOTHING RETURNING 1"
        )
        # True only in the transaction that recorded it. In a transaction that has failed it raises; a COMMIT would roll
        # back without an error.
        self.holds = Statement(
            f"SELECT 1 FROM {inbox} "
            "WHERE consumer = :consumer AND message_id = :message_id AND xmin = pg_current_xact_id()::xid"
        )
        self.clean = Statement(
            f"WITH old AS (SELECT ctid FROM {inbox} WHERE consumer = :consumer "
            "AND seen_at < now() - make_interval(secs => :retention::float8) ORDER BY seen_at LIMIT :limit::bigint "
            "FOR UPDATE SKIP LOCKED), "
            f"gone AS (DELETE FROM {inbox} WHERE ctid = ANY(ARRAY(SELECT ctid FROM old)) RETURNING 1) "
            "SELECT count(*) FROM gone"
        )


class InboxStore:
    """The records of one inbox table.

    Example:
        store = InboxStore(engine, inbox_table)
        transaction = await store.begin("billing", "order-1")  # None: it was seen
        if transaction is not None:
            await transaction.end()

    """

    def __init__(self, engine: AsyncEngine | async_sessionmaker[Any], table: Table) -> None:
        if not isinstance(engine, AsyncEngine | async_sessionmaker):
            raise TypeError(
                f"An inbox takes an AsyncEngine or an async_sessionmaker, not {type(engine).__name__}: "
                "each message has a session of its own."
            )
        check_table("table", table, make_inbox_table)
        self.table = table
        sessions = async_sessionmaker(engine, expire_on_commit=False) if isinstance(engine, AsyncEngine) else engine
        self._sessions: Callable[[], AsyncSession] = partial(sessions, **USED_ONCE)
        self._check_bind()
        self._statements = InboxStatements(table)

    def _check_bind(self) -> None:
        try:
            engine = self._sessions().sync_session.get_bind(clause=self.table).engine
        except UnboundExecutionError as error:
            raise ValueError("The sessionmaker has no engine: async_sessionmaker(engine).") from error
        check_dialect(engine.dialect)
        if autocommits(engine):
            raise ValueError(
                "The engine commits each statement by itself (AUTOCOMMIT), so the record and the handler's writes "
                "could not be rolled back together: give the inbox an engine with transactions."
            )

    async def begin(self, consumer: str, message_id: str) -> "InboxTransaction | None":
        """Open a transaction that records a message; None if it is recorded already.

        While another transaction is recording the same message, this waits for it to end.
        """
        try:
            return await self._begin(consumer, message_id)
        except DBAPIError as error:
            if sqlstate(error) != SERIALIZATION_FAILURE:
                raise
        # Under stricter isolation than Postgres' default, a record that was committed meanwhile raises this error. A
        # new transaction sees it.
        return await self._begin(consumer, message_id)

    async def _begin(self, consumer: str, message_id: str) -> "InboxTransaction | None":
        session = self._sessions()
        # Made before the first statement, so that it guards the connection too.
        transaction = InboxTransaction(session, lambda: self._holds(session, consumer, message_id))
        try:
            if await self._run(session, self._statements.record, consumer=consumer, message_id=message_id):
                return transaction
        except BaseException:
            await transaction.rollback()
            raise
        await transaction.rollback()
        return None

    async def _holds(self, session: AsyncSession, consumer: str, message_id: str) -> bool:
        return bool(await self._run(session, self._statements.holds, consumer=consumer, message_id=message_id))

    async def clean(self, consumer: str, *, retention: timedelta, limit: int) -> int:
        """Delete up to `limit` of a consumer's records that are older than `retention`; those in use stay."""
        async with self._sessions() as session, session.begin():
            # Under stricter isolation two processes that clean at the same time would fail.
            await self._connect(session, isolation_level="READ COMMITTED")
            asked = {"consumer": consumer, "retention": retention.total_seconds(), "limit": limit}
            [[count]] = await self._run(session, self._statements.clean, **asked)
            return int(count)

    async def validate_schema(self) -> None:
        """Raise if the live table lacks what the statements need; needs Alembic."""
        from faststream_outbox.storage.schema.validation import validate_tables  # noqa: PLC0415 - Alembic is optional

        async with self._sessions() as session:
            await validate_tables(await self._connect(session), [self.table])

    async def _run(self, session: AsyncSession, statement: Statement, /, **values: Any) -> Records:
        return await (await self._connect(session)).run_sync(run_on, statement, **values)

    async def _connect(self, session: AsyncSession, **options: Any) -> AsyncConnection:
        return await session.connection(bind_arguments={"clause": self.table}, execution_options=options or None)


class InboxTransaction(GuardedTransaction):
    """The transaction in which a message is recorded; the handler writes through its session."""

    def __init__(self, session: AsyncSession, holds: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(session)
        self._holds = holds

    async def end(self) -> None:
        """Commit the record and all that was written through the session, or raise with nothing committed."""
        if not await self.commit(self._holds):
            raise RuntimeError("The record of the message is gone: the handler deleted it, and nothing was committed.")
