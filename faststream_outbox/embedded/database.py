"""One database of a PostgreSQL server: its connection strings, and how others are created and dropped beside it."""

import asyncio
import contextlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import URL, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded.errors import EmbeddedPostgresError

# Names the server that tests use instead of starting one.
DSN_VARIABLE = "OUTBOX_TEST_DSN"


class Database:
    """One database, known by its connection string.

    Args:
        dsn: The connection string, with any driver or none.

    Example:
        maintenance = Database("postgresql://user:secret@127.0.0.1:5432/postgres")
        fresh = maintenance.create_database()
        engine = create_async_engine(fresh.url("asyncpg"))
        ...
        maintenance.drop_database(fresh)

    """

    def __init__(self, dsn: str | URL) -> None:
        self._url = make_url(dsn).set(drivername="postgresql")

    @property
    def name(self) -> str:
        """The name of the database."""
        return self._url.database or ""

    @property
    def dsn(self) -> str:
        """The connection string in libpq's form: `postgresql://user:password@host:port/name`."""
        return self._url.render_as_string(hide_password=False)

    def url(self, driver: str = "asyncpg") -> str:
        """Return the SQLAlchemy URL: `postgresql+asyncpg://…`.

        Args:
            driver: The driver in it, `"asyncpg"` or `"psycopg"`.

        """
        url = self._url.set(drivername=f"postgresql+{driver}")
        if driver == "asyncpg":
            # SQLAlchemy passes the query to asyncpg, which calls libpq's sslmode `ssl`.
            url = url.set(query={"ssl" if name == "sslmode" else name: value for name, value in url.query.items()})
        return url.render_as_string(hide_password=False)

    def sibling(self, name: str | None = None) -> "Database":
        """Return another database of the same server; it is not created.

        Args:
            name: Its name; by default a random one.

        """
        return Database(self._url.set(database=name or f"outbox_{secrets.token_hex(8)}"))

    def create_database(self, name: str | None = None) -> "Database":
        """Create an empty database on the same server.

        Blocks; in async code use `await asyncio.to_thread(database.create_database)`.

        Args:
            name: Its name; by default a random one.

        """
        created = self.sibling(name)
        with admin_connection(self) as execute:
            execute(create_sql(created))
        return created

    def drop_database(self, database: "Database") -> None:
        """Drop another database of the same server, also while clients are connected to it; blocks as well.

        Args:
            database: The database to drop.

        """
        with admin_connection(self) as execute:
            execute(drop_sql(database))

    def __repr__(self) -> str:
        return f"<Database {self._url.render_as_string(hide_password=True)}>"


def create_sql(database: Database) -> str:
    """Return the SQL that creates an empty database."""
    # A template cannot be copied while a client is connected to it; none can connect to template0.
    return f"CREATE DATABASE {_quoted(database.name)} TEMPLATE template0"


def drop_sql(database: Database) -> str:
    """Return the SQL that drops a database, also while clients are connected to it."""
    return f"DROP DATABASE IF EXISTS {_quoted(database.name)} WITH (FORCE)"


@contextlib.contextmanager
def admin_connection(database: Database) -> Iterator[Callable[[str], None]]:
    """Connect, and yield the function that executes statements; it blocks and may be called beside an event loop."""
    # Without a transaction, in which a database cannot be created. A test may restart the server between statements.
    engine = create_async_engine(database.url(_installed_driver()), isolation_level="AUTOCOMMIT", pool_pre_ping=True)

    async def execute(statement: str) -> None:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(statement)

    # The caller's thread may run an event loop. One loop for all statements, because a connection belongs to its loop.
    runner = asyncio.Runner()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox-postgres-admin") as thread:
        try:
            yield lambda statement: thread.submit(runner.run, execute(statement)).result()
        finally:
            thread.submit(runner.run, engine.dispose()).result()
            thread.submit(runner.close).result()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _installed_driver() -> str:
    for driver in ("asyncpg", "psycopg"):
        if importlib.util.find_spec(driver) is not None:
            return driver
    raise EmbeddedPostgresError("Creating a database needs asyncpg or psycopg. Run: pip install asyncpg.")
