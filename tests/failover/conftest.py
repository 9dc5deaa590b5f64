"""One pair of servers for all tests of a worker."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from tests.backends import PostgresBackend
from tests.failover.cluster import Cluster


@pytest.fixture(scope="session")
def servers_of_cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
async def cluster(servers_of_cluster: Cluster) -> Cluster:
    """A primary and a synchronous standby that has all its data."""
    await asyncio.to_thread(servers_of_cluster.prepare)
    return servers_of_cluster


@pytest.fixture
async def replicated(cluster: Cluster, driver: str) -> AsyncIterator[PostgresBackend]:
    """An outbox on both servers, reached by an address that names both."""
    database = await asyncio.to_thread(cluster.create_database)
    engine = create_async_engine(cluster.url(database, driver), pool_size=20)
    backend = PostgresBackend(engine)
    await backend.create()
    yield backend
    await engine.dispose()
