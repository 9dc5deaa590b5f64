from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis as RedisClient
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.cli.relay.redis_stream import RedisStream
from tests.cli.relay.relay_setup import RelaySetup
from tests.servers.redis import Redis


@pytest.fixture
async def outbox(outbox_postgres: Database) -> AsyncIterator[PostgresBackend]:
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    backend = PostgresBackend(engine)
    await backend.create()
    yield backend
    await engine.dispose()


@pytest.fixture
async def stream(redis_server: Redis) -> AsyncIterator[RedisStream]:
    """A stream that no other test uses."""
    async with RedisClient.from_url(redis_server.url) as client:
        yield RedisStream(client, f"s{uuid4().hex}")


@pytest.fixture
def setup(
    outbox: PostgresBackend, outbox_postgres: Database, redis_server: Redis, stream: RedisStream, tmp_path: Path
) -> RelaySetup:
    return RelaySetup(outbox, outbox_postgres, redis_server, stream, tmp_path)
