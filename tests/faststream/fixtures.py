from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from tests.faststream.environments import Inbox, MemoryWorld, PostgresWorld, World


async def _postgres(request: pytest.FixtureRequest) -> AsyncIterator[PostgresWorld]:
    database = request.getfixturevalue("outbox_postgres")
    engine = create_async_engine(database.url("asyncpg"), pool_size=20)
    world = PostgresWorld(engine)
    await world.backend.create()
    yield world
    await engine.dispose()


@pytest.fixture(params=["memory", "loops", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Every place where a broker runs."""
    if request.param == "postgres":
        async for world in _postgres(request):
            yield world
    else:
        yield MemoryWorld(run_loops=request.param == "loops")


@pytest.fixture(params=["loops", "postgres"])
async def looping(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The places where messages are claimed, not delivered by `publish`."""
    if request.param == "postgres":
        async for world in _postgres(request):
            yield world
    else:
        yield MemoryWorld(run_loops=True)


@pytest.fixture
async def real(request: pytest.FixtureRequest) -> AsyncIterator[PostgresWorld]:
    """Postgres."""
    async for world in _postgres(request):
        yield world


@pytest.fixture
def memory() -> MemoryWorld:
    """The test broker as it is by default."""
    return MemoryWorld(run_loops=False)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()
