"""Servers that tests of the doctor need for themselves, and the tables of operators."""

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import make_operations_tables
from faststream_outbox.embedded import EmbeddedPostgres
from faststream_outbox.storage.schema.operations_tables import OperationsTables
from tests.backends import PostgresBackend


@pytest.fixture
def driver() -> str:
    """One driver, because a visit takes a while; tests of all statements ask for the other one too."""
    return "asyncpg"


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server with prepared transactions, replication slots, and a queue of notifications that is full soon."""
    settings: dict[str, str | int] = {
        "max_prepared_transactions": 4,
        "wal_level": "logical",
        "max_wal_senders": 4,
        "max_notify_queue_pages": 64,
    }
    with EmbeddedPostgres(fast=True, settings=settings) as server:
        yield server


@pytest.fixture
async def own_postgres(own_server: EmbeddedPostgres, driver: str) -> AsyncIterator[PostgresBackend]:
    """An outbox on that server."""
    database = own_server.create_database()
    engine = create_async_engine(database.url(driver), pool_size=20)
    backend = PostgresBackend(engine)
    await backend.create()
    yield backend
    await engine.dispose()
    own_server.drop_database(database)


@pytest.fixture
async def tables(postgres: PostgresBackend) -> OperationsTables:
    """The tables of operators, beside the outbox."""
    metadata = MetaData()
    tables = make_operations_tables(metadata)
    async with postgres.engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    return tables
