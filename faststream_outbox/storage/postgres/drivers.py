"""Run statements: through the bare driver on the store's own connections, through SQLAlchemy on those of a caller."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import Pool, PoolProxiedConnection
from sqlalchemy.util import await_only, greenlet_spawn

from faststream_outbox.storage.contract import ServerProcess
from faststream_outbox.storage.errors import is_read_only, without_values
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.sessions.raw import AsyncpgConnection, RawConnection

_P = ParamSpec("_P")
_T = TypeVar("_T")

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
    # In milliseconds. A statement that was given up may wait for a lock, for example behind an ALTER TABLE. Its server
    # process would wait on after the connection is closed, and retries would use up all connections of the server.
    "client_connection_check_interval": "2000",
}
# Servers on other systems refuse any value but 0.
_ONLY_ON_LINUX: Final = "client_connection_check_interval"
_CURRENT: Final = ", ".join(f"current_setting('{name}')" for name in LANE_SETTINGS)
_PID_AND_SETTINGS: Final = Statement(f"SELECT pg_backend_pid(), date_part('epoch', now()), {_CURRENT}")
# A process with this id that began later is another one. When it began is hidden from other roles.
IS_THERE: Final = Statement("""SELECT EXISTS (SELECT FROM pg_stat_activity a
  WHERE a.pid = :pid::int AND (a.backend_start > to_timestamp(:seen_at::float8)) IS NOT TRUE)""")
INSUFFICIENT_PRIVILEGE: Final = "42501"
# True on a standby, and on a primary that was set to read-only when another one replaced it.
READ_ONLY: Final = Statement("SELECT current_setting('transaction_read_only') = 'on'")
_SET_CONFIG: Final = Statement(
    "SELECT set_config(s.name, s.value, false) FROM unnest(:names::text[], :values::text[]) AS s(name, value) "
    "WHERE s.name <> 'client_connection_check_interval' OR version() LIKE '%linux%'"
)
# The same for the rest of a transaction that has begun; its isolation cannot change any more.
_LOCAL: Final = ", ".join(
    f"set_config('{name}', '{value}', true)"
    for name, value in LANE_SETTINGS.items()
    if name not in ("default_transaction_isolation", _ONLY_ON_LINUX)
)
SET_LOCAL: Final = Statement(f"SELECT {_LOCAL}")

Records = Sequence[Sequence[Any]]


class Executor(Protocol):
    """Runs statements one by one, each in its own transaction unless one is open."""

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return its records."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements inside this block in one transaction."""


class _DriverExecutor:
    """A driver's bare connection, outside any transaction: one round trip a statement."""

    # The server process that runs the statements; None where it may change, or was not asked for.
    process: ServerProcess | None = None

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements inside this block in one transaction."""
        transaction: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return transaction


class AsyncpgExecutor(_DriverExecutor):
    """A bare asyncpg connection."""

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return its records."""
        records: Records = await self._connection.fetch(statement.text, *statement.bind(values))
        return records

    def connected_to(self) -> int:
        """Return the id of the server process, as the server announced it when the connection was opened."""
        pid: int = self._connection.get_server_pid()
        return pid

    def abort(self) -> None:
        """Close the connection without waiting for the server."""
        self._connection.terminate()


class PsycopgExecutor(_DriverExecutor):
    """A bare psycopg connection in autocommit."""

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return its records."""
        from psycopg import AsyncCursor  # noqa: PLC0415 - an optional dependency, here by the engine's own choice
        from psycopg.rows import tuple_row  # noqa: PLC0415 - same

        # Made here, because the user may have set other factories on the connection.
        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            statement.bind(values)
            await cursor.execute(statement.psycopg, values, binary=True)
            records: Records = await cursor.fetchall()
            return records

    def connected_to(self) -> int:
        """Return the id of the server process, as the server announced it when the connection was opened."""
        pid: int = self._connection.info.backend_pid
        return pid

    def abort(self) -> None:
        """Close the connection without waiting for the server."""
        self._connection.pgconn.finish()


class BorrowedExecutor:
    """A caller's `AsyncConnection`: runs inside its open transaction, or in one transaction per statement."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return its records."""
        async with self.transaction():
            return await self._connection.run_sync(run_on, statement, **values)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements inside this block in one transaction, unless the connection is in autocommit."""
        connection = self._connection
        sync = connection.sync_connection
        if sync is not None and sync.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return nullcontext()
        # A savepoint, so that a statement that fails leaves the caller's transaction usable.
        return connection.begin_nested() if connection.in_transaction() else connection.begin()


def discard_pooled(pool: Pool, lent: PoolProxiedConnection) -> None:
    """Make the pool discard the connections opened before `lent` failed, each when it is next asked for.

    They lead to a server that has become read-only. SQLAlchemy does the same for a lost connection, and does not count
    a read-only one as lost.
    """
    pool._invalidate(lent, _checkin=False)  # noqa: SLF001 - there is no public name for it


def run_on(connection: Connection, statement: Statement, /, **values: Any) -> Records:
    """Run a statement on a synchronous connection; asynchronous ones pass this to `run_sync`."""
    if connection.get_execution_options().get("schema_translate_map"):
        raise ValueError(
            "schema_translate_map has no effect on the outbox's statements: define the tables with schema=… instead."
        )
    given: Any = statement.bind(values)
    text = statement.text
    if connection.dialect.paramstyle != "numeric_dollar":
        text = statement.psycopg if connection.dialect.driver == "psycopg" else statement.pyformat
        given = values
    try:
        return connection.exec_driver_sql(text, given).fetchall()
    except StatementError as error:
        if is_read_only(error):
            discard_pooled(connection.engine.pool, connection.connection)
        # The caller may log it, and the parameters hold payloads.
        failure = without_values(error)
    raise failure


async def run_raw(
    function: Callable[Concatenate[Any, _P], _T], raw: RawConnection, /, *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a function that runs statements through `run_on_raw`, on an asynchronous connection of a driver."""
    return await greenlet_spawn(partial(function, raw, *args, **kwargs))


def run_on_raw(raw: RawConnection, statement: Statement, values: dict[str, Any]) -> Records:
    """Run a statement on a driver's connection, as part of the caller's transaction; errors are the driver's own."""
    if isinstance(raw, AsyncpgConnection):
        records: Records = await_only(AsyncpgExecutor(raw.connection).fetch(statement, **values))
        return records
    if raw.asynchronous:
        return await_only(PsycopgExecutor(raw.connection).fetch(statement, **values))
    from psycopg import Cursor  # noqa: PLC0415 - an optional dependency, here by the caller's own choice
    from psycopg.rows import tuple_row  # noqa: PLC0415 - same

    statement.bind(values)
    with Cursor(raw.connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement.psycopg, values, binary=True)
        return cursor.fetchall()


def check_engine(engine: AsyncEngine) -> None:
    """Raise unless this is an engine whose driver the store supports."""
    if not isinstance(engine, AsyncEngine):
        raise TypeError(f"engine is an AsyncEngine, made by create_async_engine(…), not {type(engine).__name__}.")
    check_dialect(engine.dialect)


def check_dialect(found: Dialect) -> None:
    """Raise unless the store supports this database and driver."""
    dialect, driver = found.name, found.driver
    if dialect != "postgresql" or driver not in DRIVERS:
        raise ValueError(
            f"The outbox lives in Postgres, through asyncpg or psycopg 3, and this engine is for {dialect}+{driver}. "
            'Use create_async_engine("postgresql+asyncpg://…") or "postgresql+psycopg://…".'
        )


def executor_of(engine: AsyncEngine, driver_connection: Any) -> AsyncpgExecutor | PsycopgExecutor:
    """Return the executor for a bare connection of the engine's driver."""
    return (AsyncpgExecutor if engine.dialect.driver == "asyncpg" else PsycopgExecutor)(driver_connection)


@asynccontextmanager
async def open_executor(engine: AsyncEngine) -> AsyncIterator[AsyncpgExecutor | PsycopgExecutor]:
    """Take a connection from the engine's pool and set `LANE_SETTINGS`; at the end restore and return it."""
    check_engine(engine)
    executor: AsyncpgExecutor | PsycopgExecutor | None = None
    async with engine.connect() as connection:
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            # The first statement goes through SQLAlchemy: if the server was restarted since this connection was pooled,
            # SQLAlchemy discards all connections pooled before, not one per attempt.
            [[pid, seen_at, *settings]] = await connection.run_sync(run_on, _PID_AND_SETTINGS)
            driver_connection = (await connection.get_raw_connection()).driver_connection
            executor = executor_of(engine, driver_connection)
            # Behind a pooler the next statement may run on another server connection: settings would not apply there,
            # and would leak to others. A pooler announces a process id of its own, not that of the server.
            direct = pid == executor.connected_to()
            if direct:
                executor.process = ServerProcess(pid, seen_at)
                await executor.fetch(_SET_CONFIG, names=list(LANE_SETTINGS), values=list(LANE_SETTINGS.values()))
            yield executor
        except BaseException as error:
            if is_read_only(error):
                discard_pooled(engine.pool, await connection.get_raw_connection())
            # Its state is unknown, so the pool must not reuse it. Close it without waiting: a driver that cancels a
            # statement would wait for a server that may not answer.
            if executor is not None:
                executor.abort()
            await connection.invalidate()
            raise
        if direct:
            try:
                await executor.fetch(_SET_CONFIG, names=list(LANE_SETTINGS), values=settings)
            except Exception:  # noqa: BLE001 - the connection died, and the caller has finished with it
                await connection.invalidate()
