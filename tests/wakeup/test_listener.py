"""A LISTEN that is lost, loudly or silently: it is noticed, said, and mended."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from faststream_outbox.embedded import Database
from faststream_outbox.storage import NewRow
from faststream_outbox.wakeup.wakeup import Wakeup
from tests.backends import PostgresBackend
from tests.observers import LISTENERS, Bell, Reports
from tests.pooler import pooling
from tests.proxy import proxying


@asynccontextmanager
async def listening(engine: AsyncEngine) -> AsyncIterator[tuple[Reports, Bell]]:
    backend, reports, bell = PostgresBackend(engine), Reports(), Bell()
    wakeup = Wakeup(backend.store, reports)
    wakeup.subscribe(["q"], bell)
    wakeup.start(listen=True)
    try:
        async with asyncio.timeout(90):
            yield reports, bell
    finally:
        async with asyncio.timeout(20):  # whatever state the connections are in
            await wakeup.stop()


async def tell(postgres: PostgresBackend) -> None:
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("q", b""), notify=True)


async def test_a_killed_listen_is_said_and_mended(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    ears = create_async_engine(outbox_postgres.url(postgres.engine.dialect.driver))
    async with listening(ears) as (reports, bell):
        await bell.rung()
        assert reports.events == [], "the first success is no news"
        for round_ in (1, 2):
            [[pid]] = await postgres.run(LISTENERS)
            await postgres.run("SELECT pg_terminate_backend(:pid)", pid=pid)
            await tell(postgres)  # whenever this comes, before or after it listens again
            lost = await reports.until("listen_lost", count=round_)
            assert isinstance(lost["error"], ConnectionError), "it was known at once, not only by a test"
            assert "polling" in lost["message"]
            assert "pooler" not in lost["message"], "there is none"
            await reports.until("listen_restored", count=round_)
            await bell.rung()
            await tell(postgres)
            await bell.rung()
            assert len(reports.events) == 2 * round_
    await ears.dispose()


async def test_a_silent_listen_is_noticed_and_mended(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    """Only the way of the LISTEN connection is cut; those that notify are new ones each time."""
    url = outbox_postgres.url(postgres.engine.dialect.driver)
    async with proxying(url) as proxy:
        ears = create_async_engine(proxy.url(url))
        async with listening(ears) as (reports, bell):
            await bell.rung()
            began = time.monotonic()
            proxy.freeze()
            await reports.until("listen_lost", seconds=15)
            assert time.monotonic() - began < 15
            await tell(postgres)
            proxy.thaw()
            await reports.until("listen_restored")
            await bell.rung()
            await tell(postgres)
            await bell.rung()
            assert [event["event"] for event in reports.events] == ["listen_lost", "listen_restored"]
        await ears.dispose()


async def test_stopping_does_not_wait_for_a_silent_server(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    """The listener is stopped while its test of the connection waits for an answer that does not come."""
    url = outbox_postgres.url(postgres.engine.dialect.driver)
    async with proxying(url) as proxy:
        engine = create_async_engine(proxy.url(url))
        async with listening(engine) as (reports, bell):
            await bell.rung()
            proxy.freeze()
            await proxy.withheld.wait()
            began = time.monotonic()
        # A listener that waits for its statement ends when it is cancelled a second time, after 5 seconds.
        assert time.monotonic() - began < 4
        assert reports.named("stop_failed") == []
        proxy.thaw()
        await engine.dispose()


async def test_an_empty_pool_is_no_loss(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    url = outbox_postgres.url(postgres.engine.dialect.driver)
    ears = create_async_engine(url, pool_size=1, max_overflow=0)
    async with listening(ears) as (reports, bell):
        await bell.rung()
        async with ears.connect():
            await asyncio.sleep(5)  # long enough for a test to find the pool empty
            await tell(postgres)
            await bell.rung()
        await ears.dispose()
    assert reports.events == []


async def test_a_server_that_is_not_there_is_said_once(outbox_postgres: Database, driver: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = make_url(outbox_postgres.url(driver)).set(port=taken.getsockname()[1])
        engine = create_async_engine(nobody)
        async with listening(engine) as (reports, _bell):
            await reports.until("listen_lost")
            await asyncio.sleep(1)
        assert len(reports.events) == 1
        await engine.dispose()


@pytest.mark.usefixtures("pgbouncer")
async def test_a_pooler_in_transaction_mode_is_noticed_and_said_once(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    driver = postgres.engine.dialect.driver
    arguments: dict[str, Any] = {"statement_cache_size": 0} if driver == "asyncpg" else {"prepare_threshold": None}
    async with pooling(outbox_postgres) as port:
        url = make_url(outbox_postgres.url(driver)).set(port=port, host="127.0.0.1")
        pooled = create_async_engine(url, poolclass=NullPool, connect_args=arguments)
        async with listening(pooled) as (reports, bell):
            await reports.until("listen_lost")
            await asyncio.sleep(6)  # some more attempts
            assert bell.rings == 0
        assert len(reports.events) == 1
        await pooled.dispose()
