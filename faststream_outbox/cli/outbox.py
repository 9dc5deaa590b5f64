"""The outbox that is relayed: its tables, its connections, and whether they are there."""

from typing import Final

from sqlalchemy import MetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.dsn import database_url
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.logs import LOGGER
from faststream_outbox.cli.settings import RelaySettings
from faststream_outbox.metrics import MetricsRecorder
from faststream_outbox.storage import make_dlq_table, make_outbox_table, make_shards_table
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.ordering import AdvisoryLocks, HashShards, HeadLease, Ordering

# Two to claim and to settle, one to notify; one to count the rows and one for the health check, which so never take
# a connection from the rows. LISTEN has one outside the pool.
_CONNECTIONS: Final = 5
_NO_SUCH_TABLE: Final = "42P01"


def make_engine(settings: RelaySettings) -> AsyncEngine:
    """Make the connections of one relay."""
    return create_async_engine(database_url(settings.dsn), pool_size=_CONNECTIONS, max_overflow=0)


def make_outbox(settings: RelaySettings, engine: AsyncEngine, recorder: MetricsRecorder) -> OutboxBroker:
    """Make the outbox of some settings."""
    metadata, schema = MetaData(), settings.schema
    shared = settings.ordering == "hash-shards"
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
    """Make the strategy of some settings."""
    match settings.ordering:
        case "head-lease":
            return HeadLease()
        case "advisory-locks":
            return AdvisoryLocks()
        case "hash-shards":
            try:
                return HashShards(count=settings.shards)
            except ValueError as error:
                raise UsageError(f"--shards: {error}") from error


async def check_tables(outbox: OutboxBroker) -> None:
    """Refuse a database that cannot be reached, or that lacks a table."""
    for table, error in await outbox.client.look():
        if sqlstate(error) == _NO_SUCH_TABLE:
            raise ProgramError(
                f"{table} is not in the database: create it by a migration of the service that publishes, "
                "or name the right one by --table, --schema, --dlq-table or --shards-table."
            ) from error
        raise ProgramError(f"{table} cannot be read: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """Tell an error of the database in a line, without the statement."""
    text = str(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error).strip()
    name, _, rest = text.partition("'>: ")  # as SQLAlchemy wraps asyncpg's
    line = (rest if rest and name.startswith("<class") else text).partition("\n")[0]
    return line or type(error).__name__
