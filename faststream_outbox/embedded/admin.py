"""Creates and drops databases, with whichever async driver is installed and from any kind of code."""

import asyncio
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded.errors import EmbeddedPostgresError

if TYPE_CHECKING:
    from faststream_outbox.embedded.database import Database

_DRIVERS = ("asyncpg", "psycopg")


class AdminSession:
    """A connection for administration, in a thread of its own because the caller's may be running an event loop.

    ```python
    with AdminSession(database) as admin:
        admin.create("fresh")
        admin.drop("fresh")
    ```
    """

    def __init__(self, database: "Database") -> None:
        self._engine = create_async_engine(
            database.url(_installed_driver()),
            isolation_level="AUTOCOMMIT",
            # A test may have restarted the server since the last statement.
            pool_pre_ping=True,
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox-postgres-admin")
        # One loop for all statements, since a connection belongs to the loop that opened it.
        self._runner = asyncio.Runner()

    def create(self, name: str) -> None:
        """Create an empty database."""
        # template0 has no visitors, and a template with visitors cannot be copied.
        self._execute(f"CREATE DATABASE {_quoted(name)} TEMPLATE template0")

    def drop(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self._execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def close(self) -> None:
        """Disconnect and end the thread."""
        with self._thread as thread:
            try:
                thread.submit(self._runner.run, self._engine.dispose()).result()
            finally:
                thread.submit(self._runner.close).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _execute(self, statement: str) -> None:
        self._thread.submit(self._runner.run, self._execute_async(statement)).result()

    async def _execute_async(self, statement: str) -> None:
        async with self._engine.connect() as connection:
            await connection.exec_driver_sql(statement)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _installed_driver() -> str:
    for driver in _DRIVERS:
        if importlib.util.find_spec(driver) is not None:
            return driver
    raise EmbeddedPostgresError(
        "Creating a database needs an async PostgreSQL driver. Run: pip install asyncpg, or pip install psycopg."
    )
