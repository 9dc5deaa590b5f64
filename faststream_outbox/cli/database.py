"""The connection to the database that a command works on."""

from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from sqlalchemy import URL, Dialect, MetaData, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from faststream_outbox._installation import needs_extra
from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.secrets import Secret
from faststream_outbox.cli.settings import OutboxSettings
from faststream_outbox.storage.schema.operations_tables import make_audit_table, make_control_table, make_nodes_table

# The faster driver first.
_DRIVERS: Final = ("asyncpg", "psycopg")
# Of a relay: two to claim and to settle, one to notify, one to count rows and one for the health check. Counting and
# health never take a connection from the rows. LISTEN has one outside the pool.
_CONNECTIONS: Final = 5


def make_engine(settings: OutboxSettings) -> AsyncEngine:
    """Return the engine of one process; it reads the password of the settings for each connection."""
    if settings.dsn is None:
        raise settings.missing("dsn", "name an application by --app")
    with settings.blame("dsn"):  # SQLAlchemy reads some options of the URL here
        engine = create_async_engine(
            database_url(settings.dsn), pool_size=_CONNECTIONS, max_overflow=0, hide_parameters=True
        )
    if settings.dsn_password is not None:
        event.listen(engine.sync_engine, "do_connect", partial(_give_password, settings.dsn_password))
    return engine


def _give_password(
    secret: Secret, _dialect: Dialect, _record: object, _arguments: object, parameters: dict[str, Any]
) -> None:
    # SQLAlchemy connects inside a greenlet, in which a coroutine can be waited for.
    parameters["password"] = await_only(secret.read_in_thread())


def database_url(dsn: str) -> URL:
    """Return the DSN as a URL of SQLAlchemy, with a driver that is installed."""
    url = make_url(dsn)
    wanted = url.drivername.partition("+")[2]
    drivers = [wanted] if wanted else _DRIVERS
    driver = next(filter(find_spec, drivers), None)
    if driver is None:
        missing = " and ".join(drivers)
        raise ProgramError(f"Not installed: {missing}. {needs_extra('A connection to Postgres', drivers[0])}.")
    if driver == "asyncpg":
        # asyncpg calls libpq's sslmode ssl.
        url = url.set(query={"ssl" if name == "sslmode" else name: value for name, value in url.query.items()})
    return url.set(drivername=f"postgresql+{driver}")


def describe_error(error: Exception) -> str:
    """Return the first line of an error, without SQLAlchemy's statement and class name."""
    text = str(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error).strip()
    name, _, rest = text.partition("'>: ")
    line = (rest if rest and name.startswith("<class") else text).partition("\n")[0]
    return line or type(error).__name__


def operations_tables(settings: OutboxSettings, metadata: MetaData) -> dict[str, Any]:
    """Return those of the operators' tables that the settings name, by their names as arguments of a broker."""
    return {
        argument: make(metadata, name, schema=settings.schema_name)
        for argument, name, make in (
            ("control_table", settings.control_table, make_control_table),
            ("audit_table", settings.audit_table, make_audit_table),
            ("nodes_table", settings.nodes_table, make_nodes_table),
        )
        if name
    }
