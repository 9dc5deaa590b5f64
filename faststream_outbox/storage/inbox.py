"""What an inbox asks of Postgres: a message recorded in a transaction that its handler shares, and old records gone."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from faststream_outbox.storage.commits import autocommits
from faststream_outbox.storage.drivers import check_dialect, run_on, sqlstate
from faststream_outbox.storage.guard import refuse_commits
from faststream_outbox.storage.schema import check_table, make_inbox_table
from faststream_outbox.storage.statements import InboxStatements

# A session that is used after its handler has ended would open a transaction that nobody commits.
# The keyword is as old as SQLAlchemy 2.0.22.
_KEYWORD: Final = "close_resets_only"
_USED_ONCE: Final[dict[str, Any]] = {_KEYWORD: False} if _KEYWORD in inspect.signature(Session).parameters else {}

_FAILED_TRANSACTION: Final = "25P02"
_SERIALIZATION_FAILURE: Final = "40001"


class InboxStore:
    """The records of one inbox table.

    Example:
        store = InboxStore(engine, inbox_table)
        transaction = await store.begin("billing", "order-1")  # None: it was seen
        if transaction is not None:
            await transaction.commit()

    """

    def __init__(self, engine: AsyncEngine | async_sessionmaker[Any], table: Table) -> None:
        if not isinstance(engine, AsyncEngine | async_sessionmaker):
            raise TypeError(
                f"An inbox takes an AsyncEngine or an async_sessionmaker, not {type(engine).__name__}: "
                "each message has a session of its own."
            )
        check_table("table", table, make_inbox_table)
        self.table = table
        self._sessions: Callable[[], AsyncSession]
        if isinstance(engine, AsyncEngine):
            self._sessions = async_sessionmaker(engine, expire_on_commit=False, **_USED_ONCE)
        else:
            self._sessions = lambda: engine(**_USED_ONCE)
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
                "The engine commits each statement by itself (AUTOCOMMIT), so that nothing could be rolled back "
                "together: give the inbox an engine with transactions."
            )

    async def begin(self, consumer: str, message_id: str) -> "InboxTransaction | None":
        """Open a transaction that records a message; None if it is recorded already.

        While another transaction is recording the same message, this waits for it to end.
        """
        try:
            return await self._begin(consumer, message_id)
        except DBAPIError as error:
            if sqlstate(error) != _SERIALIZATION_FAILURE:
                raise
        # Under stricter isolation than Postgres' own, this is how one learns of a record made meanwhile. A new
        # transaction sees it.
        return await self._begin(consumer, message_id)

    async def _begin(self, consumer: str, message_id: str) -> "InboxTransaction | None":
        session = self._sessions()
        try:
            await session.begin()
            connection = await self._connect(session)
            if await connection.run_sync(run_on, self._statements.record, consumer, message_id):
                return InboxTransaction(session, connection, lambda: self._holds(connection, consumer, message_id))
        except BaseException:
            await session.close()
            raise
        await session.close()
        return None

    async def _holds(self, connection: AsyncConnection, consumer: str, message_id: str) -> bool:
        try:
            return bool(await connection.run_sync(run_on, self._statements.holds, consumer, message_id))
        except DBAPIError as error:
            if sqlstate(error) != _FAILED_TRANSACTION:
                raise
            return False

    async def clean(self, consumer: str, *, retention: timedelta, limit: int) -> int:
        """Delete up to `limit` of a consumer's records that are older than `retention`; those in use are left."""
        async with self._sessions() as session, session.begin():
            # Two that clean up at a time would be told so as an error, under stricter isolation.
            connection = await self._connect(session, isolation_level="READ COMMITTED")
            statement, seconds = self._statements.clean, retention.total_seconds()
            [[count]] = await connection.run_sync(run_on, statement, consumer, seconds, limit)
            return int(count)

    async def validate_schema(self) -> None:
        """Compare the live table with what the statements need; needs Alembic."""
        from faststream_outbox.storage.validation import validate_tables  # noqa: PLC0415 - Alembic is optional

        async with self._sessions() as session:
            await validate_tables(await self._connect(session), [self.table])

    async def _connect(self, session: AsyncSession, **options: Any) -> AsyncConnection:
        return await session.connection(bind_arguments={"clause": self.table}, execution_options=options or None)


class InboxTransaction:
    """The transaction in which a message is recorded; its session is the handler's to write with."""

    def __init__(self, session: AsyncSession, connection: AsyncConnection, holds: Callable[[], Any]) -> None:
        self.session = session
        self._holds = holds
        self._root = session.sync_session.get_transaction()
        self._allow_commit = refuse_commits(session.sync_session, connection)

    async def commit(self) -> None:
        """Commit the record and all that was written through the session, or raise with nothing committed."""
        try:
            if not self._is_open() or not await self._flush_and_hold():
                raise RuntimeError(
                    "The transaction of the inbox's session failed or was ended in the handler, and what was written "
                    "in it is gone. The message was not handled. To undo a part, or to go on after an error of the "
                    "database, write it inside `async with session.begin_nested()`."
                )
            self._allow_commit()
            await self.session.commit()
        finally:
            await self.session.close()

    async def rollback(self) -> None:
        """Undo the record and all that was written through the session."""
        await self.session.close()

    def _is_open(self) -> bool:
        root = self._root
        return root is not None and root.is_active and self.session.sync_session.get_transaction() is root

    async def _flush_and_hold(self) -> bool:
        await self.session.flush()
        held: bool = await self._holds()
        return held
