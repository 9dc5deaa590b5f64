"""LISTEN and NOTIFY, and poolers in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.test_pooler import ARGUMENTS
from tests.operations.doctor.visits import find, named, run
from tests.pooler import pooling
from tests.proxy import Proxy, proxying


@asynccontextmanager
async def connecting(database: Database, port: int, driver: str) -> AsyncIterator[AsyncEngine]:
    url = make_url(database.url(driver)).set(port=port, host="127.0.0.1")
    engine = create_async_engine(url, connect_args=ARGUMENTS[driver])
    yield engine
    await engine.dispose()


@pytest.mark.usefixtures("pgbouncer")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_pooler_in_transaction_mode_is_named(
    postgres: PostgresBackend, outbox_postgres: Database, driver: str
) -> None:
    async with pooling(outbox_postgres) as port, connecting(outbox_postgres, port, driver) as engine:
        finding = await named(postgres, "pooler", engine=engine)
    assert finding.severity == "warning"
    assert "transaction mode" in finding.what
    assert "leads to the server itself" in finding.cure


@pytest.mark.usefixtures("pgbouncer")
async def test_a_pooler_that_keeps_sessions_is_worth_knowing(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    pooler = pooling(outbox_postgres, mode="session")
    async with pooler as port, connecting(outbox_postgres, port, "asyncpg") as engine:
        finding = await named(postgres, "pooler", engine=engine)
    assert finding.severity == "info"
    assert "keeps sessions" in finding.what


class DeafProxy(Proxy):
    """Drops what the server sends without being asked, as a proxy does that knows only questions and answers."""

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool = False
    ) -> None:
        if to_server:
            await super()._pump(reader, writer, to_server=True)
            return
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            if head[:1] != b"A":  # NotificationResponse
                writer.write(head + body)
                await writer.drain()


async def test_notifications_that_do_not_arrive_are_named(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    async with proxying(outbox_postgres.dsn, kind=DeafProxy) as proxy:
        # Without TLS, which the server would answer by one byte that is no message.
        url = make_url(proxy.url(outbox_postgres.url("asyncpg"))).update_query_dict({"ssl": "disable"})
        engine = create_async_engine(url)
        finding = await named(postgres, "notifications", engine=engine)
        await engine.dispose()
    assert finding.severity == "warning"
    assert "did not come back" in finding.what
    assert "proxy" in finding.cure


async def test_a_queue_of_notifications_that_fills_is_named_with_the_session_that_keeps_it(
    own_postgres: PostgresBackend,
) -> None:
    async with own_postgres.engine.connect() as listening:
        await listening.exec_driver_sql("LISTEN anything")
        await listening.commit()
        await listening.exec_driver_sql("SELECT 1")  # and stays in its transaction
        loud = "SELECT count(pg_notify('anything', n || repeat('x', 7000))) FROM generate_series(1, 55) n"
        await own_postgres.run(loud)
        finding = next(each for each in await find(own_postgres, "notifications") if each.severity == "error")
        assert "% full" in finding.what
        assert finding.since is not None
        await run(own_postgres.engine, finding.sql)
        await listening.invalidate()
    # Postgres moves the tail of the queue when the next notification is sent.
    await own_postgres.run("SELECT pg_notify('anything', '')")
    assert await find(own_postgres, "notifications") == []
