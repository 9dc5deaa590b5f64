"""How many rows have come and gone, by the server's own counters: rates without counting rows."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.storage.schema.tables import quoted_name

# The counters of other sessions arrive here within about a second of their commits.
_COUNTERS: Final = text("""
SELECT pg_catalog.pg_stat_get_tuples_inserted(c.oid), pg_catalog.pg_stat_get_tuples_deleted(c.oid),
       CAST(extract(epoch FROM clock_timestamp()) AS float8)
  FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass(CAST(:name AS text))
""")


@dataclass(frozen=True, slots=True)
class Activity:
    """The rows that were ever inserted into a table and deleted from it, and when that was read, in epoch seconds."""

    inserted: int
    deleted: int
    at: float


async def read_activity(connection: AsyncConnection, table: Table) -> Activity:
    """Return the server's counters of a table."""
    row = (await connection.execute(_COUNTERS, {"name": quoted_name(table.name, table.schema)})).one()
    return Activity(*row)
