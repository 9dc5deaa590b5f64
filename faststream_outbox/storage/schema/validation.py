"""Check that the live tables have what the statements need, in a start-up hook or a health check."""

import warnings
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from faststream_outbox._installation import needs_extra
from faststream_outbox.storage.schema.tables import SCHEMA_VERSION

_OUTSIDE: Final = "Run this DDL, outside a transaction."


class OutboxSchemaWarning(UserWarning):
    """The tables work, and something about them should be mended.

    Storage options differ from the defined ones, which makes the tables slower; an index is missing that only searches
    of operators use; or the tables record no schema version, an older one, or one that this version of the package does
    not know yet.
    """


async def validate_schema(
    engine: AsyncEngine,
    outbox_table: Table,
    dlq_table: Table | None = None,
    shards_table: Table | None = None,
    *more_tables: Table | None,
    check_autovacuum: bool = False,
) -> None:
    """Raise one `RuntimeError` that lists everything the live tables lack, with the DDL that mends it.

    Only the system catalogs are read. You may add columns and indexes of your own, as long as rows can be inserted
    without them. Indexes are compared by what they do, not by their names. Storage options that differ from the defined
    ones are an `OutboxSchemaWarning`; with `check_autovacuum=True` those of autovacuum are an error too. Errors name
    the schema version that the tables record; where it is not that of this package, there is a warning too.

    Args:
        engine: The database.
        outbox_table: The table of `make_outbox_table`.
        dlq_table: The table of `make_dlq_table`.
        shards_table: The table of `make_shards_table`.
        more_tables: The tables of `make_operations_tables`, or those of them that you use.
        check_autovacuum: Whether other autovacuum settings than those of a new table are an error too.

    Example:
        await validate_schema(engine, outbox_table, dlq_table)
        await validate_schema(
            engine, outbox_table, dlq_table, None, *make_operations_tables(metadata)
        )

    """
    tables = [table for table in (outbox_table, dlq_table, shards_table, *more_tables) if table is not None]
    async with engine.connect() as connection:
        await validate_tables(connection, tables, check_autovacuum=check_autovacuum)


async def validate_tables(
    connection: AsyncConnection, tables: Sequence[Table], *, check_autovacuum: bool = False
) -> None:
    """Raise or warn as `validate_schema` does, for any tables of this package."""
    try:
        from faststream_outbox.storage.schema.comparison import compare_tables  # noqa: PLC0415 - Alembic is optional
    except ImportError as error:
        raise ImportError(f"Alembic cannot be imported. {needs_extra('validate_schema()', 'validate')}") from error
    found = await connection.run_sync(compare_tables, tables)
    untuned = found.autovacuum if check_autovacuum else []
    slow = found.fillfactor if check_autovacuum else [*found.fillfactor, *found.autovacuum]
    recorded = " and ".join(sorted({f"schema {each}" if each is not None else "no schema" for each in found.recorded}))
    versions = f"this package needs schema {SCHEMA_VERSION}, and the tables record {recorded or 'no schema'}"
    if found.faults and found.newer:
        # DDL of an older version could take away what newer processes need.
        advice = "Upgrade this package. Only if no newer process runs, run this DDL, outside a transaction."
        raise RuntimeError(_message(f"Outbox schema mismatch: {versions}. {advice}", *found.faults))
    if found.faults:
        header = f"Outbox schema mismatch: {versions}. {_OUTSIDE}"
        raise RuntimeError(_message(header, *found.faults, *found.searches, *found.version, *untuned))
    if untuned:
        raise RuntimeError(_message("Outbox autovacuum not tuned: run this DDL.", *untuned))
    if found.newer:
        message = f"Outbox schema is newer: {versions}. Both work together; upgrade this package soon."
        warnings.warn(message, OutboxSchemaWarning, stacklevel=2)
    if found.searches:
        header = f"Outbox index missing: {versions}. Without it only searches of operators are slow. {_OUTSIDE}"
        message = _message(header, *found.searches, *found.version)
        warnings.warn(message, OutboxSchemaWarning, stacklevel=2)
    elif found.version:
        message = _message(f"Outbox schema version: {versions}. Nothing else is missing: run this DDL.", *found.version)
        warnings.warn(message, OutboxSchemaWarning, stacklevel=2)
    if slow:
        message = _message("Outbox storage options differ from the defined ones: run this DDL.", *slow)
        warnings.warn(message, OutboxSchemaWarning, stacklevel=2)


def _message(*lines: object) -> str:
    return "\n".join(map(str, lines))
