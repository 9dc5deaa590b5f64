"""The tables of a demo, as a story left them, for the tests of its check."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from examples.demo.check import find_violations
from examples.demo.tables import Base
from faststream_outbox.embedded import Database


@asynccontextmanager
async def open_books(database: Database, story: str) -> AsyncIterator[AsyncConnection]:
    """Make the tables, and write a story into them."""
    engine = create_async_engine(database.url("asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await write(connection, story)
        yield connection
    await engine.dispose()


async def write(connection: AsyncConnection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        await connection.exec_driver_sql(statement)


async def found_in(connection: AsyncConnection, accepted: set[int]) -> dict[str, list[int]]:
    """Tell what the check finds, if anything."""
    return {name: orders for name, orders in (await find_violations(connection, accepted)).items() if orders}
