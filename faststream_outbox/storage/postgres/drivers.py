"""How a statement reaches Postgres: through the bare driver on our connections, through SQLAlchemy on others'."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from faststream_outbox.storage.postgres.statements.statement import Statement

DRIVERS: Final = ("asyncpg", "psycopg")

# The settings of the store's own connections. A plan is made once and kept: made while the table was small it would
# scan the whole table, and the next burst of rows would be read by it. These settings leave one plan to make: probe the
# index for each element of the array, then hash with the array's other columns. Isolation is read committed, because
# under a stricter one a claim fails at the rows that it should skip.
LANE_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "enable_hashjoin": "on",
    "enable_indexscan": "on",
    "jit": "off",
}
_CURRENT: Final = ", ".join(f"current_setting('{name}')" for name in LANE_SETTINGS)
_WHO_AND_HOW: Final = Statement(f"SELECT pg_backend_pid(), {_CURRENT}")
_SET_CONFIG: Final = Statement(
    "SELECT set_config(s.name, s.value, false) FROM unnest(:names::text[], :values::text[]) AS s(name, value)"
)
# The same for the rest of a transaction that has begun; its isolation cannot change any more.
_LOCAL: Final = ", ".join(
    f"set_config('{name}', '{value}', true)"
    for name, value in LANE_SETTINGS.items()
    if name != "default_transaction_isolation"
)
SET_LOCAL: Final = Statement(f"SELECT {_LOCAL}")

Records = Sequence[Sequence[Any]]


class Executor(Protocol):
    """Runs statements one by one, each in a transaction of its own unless it was given one."""

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return what it returns."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements meanwhile in one transaction."""


class AsyncpgExecutor:
    """A bare asyncpg connection, outside any transaction: one round trip a statement."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return what it returns."""
        records: Records = await self._connection.fetch(statement.text, *statement.bind(values))
        return records

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements meanwhile in one transaction."""
        transaction: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return transaction

    def connected_to(self) -> int:
        """Tell which server process the connection was told it talks to."""
        pid: int = self._connection.get_server_pid()
        return pid

    def abort(self) -> None:
        """Drop the connection without a word to the server."""
        self._connection.terminate()


class PsycopgExecutor:
    """A bare psycopg connection in autocommit: one round trip a statement."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return what it returns."""
        from psycopg import AsyncCursor  # noqa: PLC0415 - an optional dependency, here by the engine's own choice
        from psycopg.rows import tuple_row  # noqa: PLC0415 - same

        # A cursor of our own making: the connection's factories are the user's to choose.
        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            statement.bind(values)
            await cursor.execute(statement.psycopg, values, binary=True)
            records: Records = await cursor.fetchall()
            return records

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements meanwhile in one transaction."""
        transaction: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return transaction

    def connected_to(self) -> int:
        """Tell which server process the connection was told it talks to."""
        pid: int = self._connection.info.backend_pid
        return pid

    def abort(self) -> None:
        """Drop the connection without a word to the server."""
        self._connection.pgconn.finish()


class BorrowedExecutor:
    """Somebody else's `AsyncConnection`: inside its transaction where one is open, else in one of its own."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return what it returns."""
        async with self.transaction():
            return await self._connection.run_sync(run_on, statement, **values)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements meanwhile in one transaction, unless the connection commits each by itself."""
        connection = self._connection
        if connection.sync_connection is not None and _autocommits(connection.sync_connection):
            return nullcontext()
        # A savepoint, so that a statement that fails leaves the caller's transaction usable.
        return connection.begin_nested() if connection.in_transaction() else connection.begin()


def run_on(connection: Connection, statement: Statement, /, **values: Any) -> Records:
    """Run a statement in the transaction that is open on a synchronous connection; asynchronous ones `run_sync` it."""
    if connection.get_execution_options().get("schema_translate_map"):
        raise ValueError("schema_translate_map is not followed here: define the outbox with schema=… instead.")
    arguments = statement.bind(values)
    if connection.dialect.paramstyle == "numeric_dollar":
        return connection.exec_driver_sql(statement.text, arguments).fetchall()
    text = statement.psycopg if connection.dialect.driver == "psycopg" else statement.pyformat
    return connection.exec_driver_sql(text, values).fetchall()


def _autocommits(connection: Connection) -> bool:
    return connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"


def check_engine(engine: AsyncEngine) -> None:
    """Refuse an engine whose driver the store does not speak."""
    if not isinstance(engine, AsyncEngine):
        raise TypeError(f"engine is an AsyncEngine, made by create_async_engine(…), not {type(engine).__name__}.")
    check_dialect(engine.dialect)


def check_dialect(spoken: Dialect) -> None:
    """Refuse a database or a driver that the store does not speak."""
    dialect, driver = spoken.name, spoken.driver
    if dialect != "postgresql" or driver not in DRIVERS:
        raise ValueError(
            f"The outbox lives in Postgres, through asyncpg or psycopg 3, and this engine is for {dialect}+{driver}. "
            'Use create_async_engine("postgresql+asyncpg://…") or "postgresql+psycopg://…".'
        )


@asynccontextmanager
async def open_executor(engine: AsyncEngine) -> AsyncIterator[Executor]:
    """Take a connection from the engine's pool and set it up for claims and settles; give it back as it was."""
    check_engine(engine)
    executor: AsyncpgExecutor | PsycopgExecutor | None = None
    async with engine.connect() as connection:
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            # The first statement goes through SQLAlchemy: should the server have gone away since this connection was
            # pooled, SQLAlchemy then throws out all that were pooled before, not one per attempt.
            [[pid, *settings]] = await connection.run_sync(run_on, _WHO_AND_HOW)
            driver_connection = (await connection.get_raw_connection()).driver_connection
            executor = (AsyncpgExecutor if engine.dialect.driver == "asyncpg" else PsycopgExecutor)(driver_connection)
            # Behind a pooler the next statement may run on another server connection: settings would not hold there,
            # and would leak to others. A pooler answers for itself when it is asked whom one talks to.
            direct = pid == executor.connected_to()
            if direct:
                await executor.fetch(_SET_CONFIG, names=list(LANE_SETTINGS), values=list(LANE_SETTINGS.values()))
            yield executor
        except BaseException:
            # Whatever state it is in, the pool must not hand it to anybody. Nor is a server that may have gone silent
            # to be waited for, as a driver does that has a statement to cancel.
            if executor is not None:
                executor.abort()
            await connection.invalidate()
            raise
        if direct:
            try:
                await executor.fetch(_SET_CONFIG, names=list(LANE_SETTINGS), values=settings)
            except Exception:  # noqa: BLE001 - it died, and whoever used it had no reason to care
                await connection.invalidate()
