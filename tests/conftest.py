import signal
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox.embedded import Database
from tests.backends import Backend, MemoryBackend, PostgresBackend

pytest_plugins = ["tests.faststream.fixtures", "tests.servers.plugin"]

# A suite that a shell starts in the background, as many CI systems do, ignores SIGINT, and so would the programs that
# tests start. A handler is not inherited: with one that does nothing, only the suite ignores SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda _number, _frame: None)

DRIVERS = ("asyncpg", "psycopg")


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def engine(outbox_postgres: Database, driver: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(outbox_postgres.url(driver), pool_size=20)
    yield engine
    await engine.dispose()


@pytest.fixture
async def postgres(engine: AsyncEngine) -> PostgresBackend:
    """An outbox on Postgres, once for each driver."""
    backend = PostgresBackend(engine)
    await backend.create()
    return backend


@pytest.fixture(params=["memory", *DRIVERS])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Every store there is: what is asked of this fixture is the contract."""
    if request.param == "memory":
        yield MemoryBackend()
        return
    database: Database = request.getfixturevalue("outbox_postgres")
    engine = create_async_engine(database.url(request.param))
    backend = PostgresBackend(engine)
    await backend.create()
    yield backend
    await engine.dispose()
