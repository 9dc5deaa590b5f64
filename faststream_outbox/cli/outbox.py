"""The outbox that a command works on: its engine, its tables, and the check that they exist."""

from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from sqlalchemy import URL, Dialect, MetaData, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.logs import LOGGER
from faststream_outbox.cli.secrets import Secret
from faststream_outbox.cli.settings import RelaySettings
from faststream_outbox.cli.strategies import split_shards
from faststream_outbox.metrics import MetricsRecorder
from faststream_outbox.storage import make_dlq_table, make_outbox_table, make_shards_table
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.ordering import AdvisoryLocks, HashShards, HeadLease, Ordering

# The faster driver first.
_DRIVERS: Final = ("asyncpg", "psycopg")
# Two to claim and to settle, one to notify, one to count rows and one for the health check: counting and health never
# take a connection from the rows. LISTEN has one outside the pool.
_CONNECTIONS: Final = 5
_NO_SUCH_TABLE: Final = "42P01"


def make_engine(settings: RelaySettings) -> AsyncEngine:
    """Return the engine of one process; it reads the password of the settings for each connection."""
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
        names, extra = " or ".join(drivers), drivers[0]
        raise ProgramError(f"Postgres needs {names}, which is not installed: pip install 'faststream-outbox[{extra}]'.")
    if driver == "asyncpg":
        # asyncpg calls libpq's sslmode ssl.
        url = url.set(query={"ssl" if name == "sslmode" else name: value for name, value in url.query.items()})
    return url.set(drivername=f"postgresql+{driver}")


def make_outbox(settings: RelaySettings, engine: AsyncEngine, recorder: MetricsRecorder) -> OutboxBroker:
    """Return the outbox of some settings, not connected yet."""
    metadata, schema = MetaData(), settings.schema_name
    shared = settings.ordering == "hash-shards" and settings.own_shards is None
    try:
        return OutboxBroker(
            engine,
            outbox_table=make_outbox_table(metadata, settings.table, schema=schema),
            dlq_table=make_dlq_table(metadata, settings.dlq_table, schema=schema) if settings.dlq_table else None,
            shards_table=make_shards_table(metadata, settings.shards_table, schema=schema) if shared else None,
            graceful_timeout=settings.graceful_timeout,
            metrics_recorder=recorder,
            logger=LOGGER,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def make_ordering(settings: RelaySettings) -> Ordering:
    """Return the ordering strategy of some settings."""
    count, own = settings.shards, settings.own_shards
    with settings.blame("own_shards"):
        if own is not None and settings.ordering != "hash-shards":
            raise ValueError(
                f"the ordering is {settings.ordering}, which has no shards: set the ordering to hash-shards, or leave "
                "own_shards out."
            )
    if settings.ordering != "hash-shards":
        return HeadLease() if settings.ordering == "head-lease" else AdvisoryLocks()
    with settings.blame("shards"):
        ordering = HashShards(count)
    with settings.blame("own_shards"):
        ordering = ordering if own is None else HashShards(count, split_shards(own, count))
    return ordering  # noqa: RET504 - mypy takes a `with` that returns for one that may not


async def check_tables(outbox: OutboxBroker) -> None:
    """Raise `ProgramError` if the database cannot be reached or lacks a table."""
    for table, error in await outbox.client.store.look():
        if sqlstate(error) == _NO_SUCH_TABLE:
            raise ProgramError(
                f"{table} is not in the database: create it by a migration of the service that publishes, "
                "or name another by --table, --schema, --dlq-table or --shards-table."
            ) from error
        raise ProgramError(f"{table} cannot be read: {describe_error(error)}") from error


def describe_error(error: Exception) -> str:
    """Return the first line of an error, without SQLAlchemy's statement and class name."""
    text = str(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error).strip()
    name, _, rest = text.partition("'>: ")
    line = (rest if rest and name.startswith("<class") else text).partition("\n")[0]
    return line or type(error).__name__
