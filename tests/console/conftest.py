from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.console.outbox import ConsoleOutbox


@pytest.fixture
async def outbox(outbox_postgres: Database) -> AsyncIterator[ConsoleOutbox]:
    """An outbox with all tables, empty."""
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    outbox = ConsoleOutbox(engine)
    await outbox.backend.create()
    yield outbox
    await engine.dispose()
