"""The outbox that a relay reads: its tables, how its keys are shared, and the check that the tables exist."""

from typing import Final

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.database import describe_error, operations_tables
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.relay.logs import LOGGER
from faststream_outbox.cli.relay.settings import RelaySettings
from faststream_outbox.cli.relay.strategies import split_shards
from faststream_outbox.metrics import MetricsRecorder
from faststream_outbox.storage import make_dlq_table, make_outbox_table, make_shards_table
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.ordering import AdvisoryLocks, HashShards, HeadLease, Ordering

_NO_SUCH_TABLE: Final = "42P01"


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
            **operations_tables(settings, metadata),
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
    for _, table, error in await outbox.client.store.look():
        if sqlstate(error) == _NO_SUCH_TABLE:
            raise ProgramError(
                f"{table} is not in the database: create it by a migration of the service that publishes, "
                "or name another by --table, --schema, --dlq-table, --shards-table or --control-table."
            ) from error
        raise ProgramError(f"{table} cannot be read: {describe_error(error)}") from error
