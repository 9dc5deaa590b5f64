"""Fixtures: the environments in which a broker runs, and a list of what its handlers received."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from tests.faststream.environments import Environment, MemoryEnvironment, PostgresEnvironment, Received


async def _postgres(request: pytest.FixtureRequest) -> AsyncIterator[PostgresEnvironment]:
    database = request.getfixturevalue("outbox_postgres")
    engine = create_async_engine(database.url("asyncpg"), pool_size=20)
    environment = PostgresEnvironment(engine)
    await environment.backend.create()
    yield environment
    await engine.dispose()


@pytest.fixture(params=["memory", "loops", "postgres"])
async def environment(request: pytest.FixtureRequest) -> AsyncIterator[Environment]:
    """Every environment in which a broker runs."""
    if request.param == "postgres":
        async for environment in _postgres(request):
            yield environment
    else:
        yield MemoryEnvironment(run_loops=request.param == "loops")


@pytest.fixture(params=["loops", "postgres"])
async def looping(request: pytest.FixtureRequest) -> AsyncIterator[Environment]:
    """The environments where messages are claimed, not delivered by `publish`."""
    if request.param == "postgres":
        async for environment in _postgres(request):
            yield environment
    else:
        yield MemoryEnvironment(run_loops=True)


@pytest.fixture
async def real(request: pytest.FixtureRequest) -> AsyncIterator[PostgresEnvironment]:
    """The environment on Postgres."""
    async for environment in _postgres(request):
        yield environment


@pytest.fixture
def memory() -> MemoryEnvironment:
    """The test broker as it is by default."""
    return MemoryEnvironment(run_loops=False)


@pytest.fixture
def received() -> Received:
    return Received()
