"""A primary that was replaced and stays up, read-only: its connections are given up for those to the new one."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from faststream_outbox import ConstantRetry
from faststream_outbox.annotations import OutboxSession
from faststream_outbox.storage.errors import ReadOnlyServerError, is_read_only
from faststream_outbox.wakeup.wakeup import Wakeup
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.failover.cluster import Cluster
from tests.observers import Reports, Wakes
from tests.waiting import until, until_empty

EAGER: dict[str, Any] = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2}
POOLED = 8


async def pool_connections(postgres: PostgresBackend) -> list[str]:
    """Use some connections at the same time, so that they are pooled afterwards; return which are read-only."""
    async with AsyncExitStack() as stack:
        held = [await stack.enter_async_context(postgres.engine.connect()) for _ in range(POOLED)]
        return [(await each.execute(text("SHOW transaction_read_only"))).scalar_one() for each in held]


async def test_the_listener_leaves_it(replicated: PostgresBackend, cluster: Cluster) -> None:
    reports, wakes = Reports(), Wakes()
    wakeup = Wakeup(replicated.store, reports)
    wakeup.subscribe(["q"], wakes)
    wakeup.start(listen=True)
    try:
        await wakes.next()
        await pool_connections(replicated)
        await asyncio.to_thread(cluster.switch_over)
        lost = await reports.until("listen_lost")
        assert isinstance(lost["error"], ReadOnlyServerError)
        assert "connect to the primary" in lost["message"]
        await reports.until("listen_restored")
        await wakes.next()
        await replicated.store.notify(["q"])
        await wakes.next()
    finally:
        await wakeup.stop()
    assert await pool_connections(replicated) == ["off"] * POOLED


async def test_subscribers_leave_it(replicated: PostgresBackend, cluster: Cluster) -> None:
    """Also the connections that were in use at the switch, and came back to the pool after it."""
    records, handled = Records(), list[int]()
    await replicated.run("CREATE TABLE effects (number int)")
    broker = broker_on(replicated, records)

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.1, max_attempts=None), **EAGER)
    async def handle(number: int, session: OutboxSession) -> None:
        await session.execute(text("INSERT INTO effects VALUES (:number)"), {"number": number})
        handled.append(number)

    async with started(broker):
        await publish(broker, replicated, 1)
        await until_empty(replicated)
        await pool_connections(replicated)
        async with replicated.engine.connect() as used:
            await used.execute(text("SELECT 1"))
            await asyncio.to_thread(cluster.switch_over)
            await until(lambda: records.named("claim_failed"))
            await until(broker.ping)
        await publish(broker, replicated, 2)
        await until_empty(replicated)
        assert await replicated.run("SELECT number FROM effects ORDER BY number") == [(1,), (2,)]
        assert "connect to the primary" in records.named("claim_failed")[0].getMessage()
    assert await pool_connections(replicated) == ["off"] * POOLED


async def test_ping_tells_it_from_a_primary_and_leaves_it(replicated: PostgresBackend, cluster: Cluster) -> None:
    broker = broker_on(replicated)
    await pool_connections(replicated)
    await asyncio.to_thread(cluster.switch_over)
    assert not await broker.ping()
    assert await broker.ping()
    assert await pool_connections(replicated) == ["off"] * POOLED


async def test_a_publish_that_fails_leaves_it(replicated: PostgresBackend, cluster: Cluster) -> None:
    broker = broker_on(replicated)
    await pool_connections(replicated)
    await asyncio.to_thread(cluster.switch_over)
    with pytest.raises(DBAPIError) as raised:
        await publish(broker, replicated, 1)
    assert is_read_only(raised.value)
    await publish(broker, replicated, 1)
    assert await pool_connections(replicated) == ["off"] * POOLED
