"""A LISTEN that is lost, loudly or silently: it is noticed, said, and mended."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from faststream_outbox.embedded import Database
from faststream_outbox.runtime.loop import Backoff
from faststream_outbox.storage import Listening, MemoryStore, NewRow, nodes
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.nodes import Look, Node
from faststream_outbox.wakeup import listener
from faststream_outbox.wakeup.wakeup import Wakeup
from tests.backends import PostgresBackend
from tests.observers import LISTENERS, Reports, Wakes
from tests.pooler import pooling
from tests.proxy import proxying
from tests.waiting import until


@asynccontextmanager
async def listening(engine: AsyncEngine) -> AsyncIterator[tuple[Reports, Wakes]]:
    backend, reports, wakes = PostgresBackend(engine), Reports(), Wakes()
    wakeup = Wakeup(backend.store, reports)
    wakeup.subscribe(["q"], wakes)
    wakeup.start(listen=True)
    try:
        async with asyncio.timeout(90):
            yield reports, wakes
    finally:
        async with asyncio.timeout(20):  # whatever state the connections are in
            await wakeup.stop()


async def tell(postgres: PostgresBackend) -> None:
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("q", b""), notify=True)


async def test_who_listens_after_a_fork_is_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    before = store.nodes.own.id
    for process, is_another in ((os.getpid(), False), (2**40, True)):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        wakeup = Wakeup(store, Reports())
        wakeup.start(listen=True)
        await wakeup.stop()
        assert (store.nodes.own.id != before) is is_another


async def test_a_killed_listen_is_said_and_mended(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    listening_engine = create_async_engine(outbox_postgres.url(postgres.engine.dialect.driver))
    async with listening(listening_engine) as (reports, wakes):
        await wakes.next()
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
            await wakes.next()
            await tell(postgres)
            await wakes.next()
            assert len(reports.events) == 2 * round_
    await listening_engine.dispose()


async def test_a_silent_listen_is_noticed_and_mended(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    """Only the way of the LISTEN connection is cut; those that notify are new ones each time."""
    url = outbox_postgres.url(postgres.engine.dialect.driver)
    async with proxying(url) as proxy:
        listening_engine = create_async_engine(proxy.url(url))
        async with listening(listening_engine) as (reports, wakes):
            await wakes.next()
            began = time.monotonic()
            proxy.freeze()
            await reports.until("listen_lost", seconds=15)
            assert time.monotonic() - began < 15
            await tell(postgres)
            proxy.thaw()
            await reports.until("listen_restored")
            await wakes.next()
            await tell(postgres)
            await wakes.next()
            assert [event["event"] for event in reports.events] == ["listen_lost", "listen_restored"]
        await listening_engine.dispose()


async def test_stopping_does_not_wait_for_a_silent_server(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    """The listener is stopped while its test of the connection waits for an answer that does not come."""
    url = outbox_postgres.url(postgres.engine.dialect.driver)
    async with proxying(url) as proxy:
        engine = create_async_engine(proxy.url(url))
        async with listening(engine) as (reports, wakes):
            await wakes.next()
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
    listening_engine = create_async_engine(url, pool_size=1, max_overflow=0)
    async with listening(listening_engine) as (reports, wakes):
        await wakes.next()
        async with listening_engine.connect():
            await asyncio.sleep(5)  # long enough for a test to find the pool empty
            await tell(postgres)
            await wakes.next()
        await listening_engine.dispose()
    assert reports.events == []


async def test_a_server_that_is_not_there_is_said_once(outbox_postgres: Database, driver: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = make_url(outbox_postgres.url(driver)).set(port=taken.getsockname()[1])
        engine = create_async_engine(nobody)
        async with listening(engine) as (reports, _wakes):
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
        async with listening(pooled) as (reports, wakes):
            await reports.until("listen_lost")
            await asyncio.sleep(6)  # some more attempts
            assert wakes.count == 0
        assert len(reports.events) == 1
        await pooled.dispose()


class FlakyStore(MemoryStore):
    """A store whose LISTEN fails as often as it is told."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    @asynccontextmanager
    async def listen(self, on_queue: Callable[[str], None]) -> AsyncIterator[Listening]:
        if self.failures:
            self.failures -= 1
            raise ConnectionRefusedError
        async with super().listen(on_queue) as listening:
            yield listening


async def test_a_server_that_comes_back_is_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long outage as well, and the next outage is retried from the shortest wait again."""
    waits, go_on = list[float](), Backoff.wait

    async def record(backoff: Backoff) -> None:
        waits.append(backoff._next)
        await go_on(backoff)

    monkeypatch.setattr(Backoff, "wait", record)
    monkeypatch.setattr("faststream_outbox.runtime.loop.random.random", lambda: -0.99)  # nearly no wait
    monkeypatch.setattr("faststream_outbox.wakeup.listener._TEST_EVERY", 0.0)
    store, reports = FlakyStore(failures=10), Reports()
    wakeup = Wakeup(store, reports)
    wakeup.start(listen=True)
    try:
        await reports.until("listen_restored")
        assert len(waits) == 10
        assert max(waits) <= 1
        store.failures = 1
        wakeup._listener._listening = None  # type: ignore[union-attr]  # as after a lost connection
        await until(lambda: len(waits) == 11)
        assert waits[-1] == waits[0]
    finally:
        await wakeup.stop()


class LookingStore(MemoryStore):
    """A store whose LISTEN sees the lock of one node."""

    @asynccontextmanager
    async def listen(self, on_queue: Callable[[str], None]) -> AsyncIterator[Listening]:
        async with super().listen(on_queue) as listening:

            async def look(_: Node) -> Look:
                return Look(frozenset(["me"]), database_time=0.0, sent=lease_now(), received=lease_now())

            listening.look = look  # type: ignore[method-assign, assignment]
            yield listening


async def test_the_look_that_ends_a_grace_does_not_wait_for_the_next_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listener, nodes):
        monkeypatch.setattr(module, "LOOK_EVERY", 3600.0)
    monkeypatch.setattr(nodes, "GRACE", 0.2)
    store = LookingStore()
    wakeup = Wakeup(store, Reports())
    wakeup.start(listen=True)
    try:
        await until(lambda: store.nodes.watch.found == 1)
    finally:
        await wakeup.stop()
