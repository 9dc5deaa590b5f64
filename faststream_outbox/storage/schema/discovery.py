"""Which tables exist, before anything else is asked of them."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.storage.schema.tables import quoted_name

# The catalogs answer without any right on the tables. A name without a schema is looked up on the search_path.
_EXISTS: Final = text("SELECT pg_catalog.to_regclass(CAST(:name AS text)) IS NOT NULL")


async def existing_tables(connection: AsyncConnection, tables: Iterable[Table]) -> list[Table]:
    """Return those of the tables that exist in the database."""
    return [table for table in tables if await _exists(connection, table)]


async def _exists(connection: AsyncConnection, table: Table) -> bool:
    return bool(await connection.scalar(_EXISTS, {"name": quoted_name(table.name, table.schema)}))
